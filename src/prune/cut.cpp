#include "prune/cut.h"

#include <algorithm>

#include "model/optimizer.h"
#include "state/state.h"

namespace ebb {

bool Role::moment() const { return !prefix.empty() && prefix != kAverage && !mask(); }
bool Role::mask() const { return prefix == kMask; }
bool Role::begins_code() const { return prefix == kWarm; }
bool Role::projector() const { return prefix == kProjector; }

Shape Role::shape() const {
  if (mask()) return {param->rows(), mask_bytes(param->columns())};
  if (of_rows) return {param->rows()};
  if (of_columns) return {param->columns()};
  if (rank > 0) {
    const int64_t most = std::max(param->rows(), param->columns());
    const int64_t least = std::min(param->rows(), param->columns());
    return projector() ? Shape{rank, least} : Shape{most, rank};
  }
  return param->stored();
}

std::map<std::string, Role> roles_of(const std::vector<ParamSpec>& params,
                                     const SafetensorsReader& file, int64_t galore_rank) {
  std::map<std::string, Role> roles;
  const std::vector<std::string> prefixes = saved_prefixes();
  const Storage storage{.galore_rank = galore_rank};
  for (const ParamSpec& param : params) {
    roles[param.name] = {&param, ""};
    if (param.sparse()) roles[kMask + param.name] = {&param, kMask};
    if (!param.trained()) continue;
    for (const std::string& prefix : prefixes) {
      Role role{&param, prefix, prefix == "v_row.", prefix == "v_col."};
      if (role.projector() && !storage.projects(param)) continue;
      if (role.moment() && storage.projects(param)) role.rank = galore_rank;
      roles[prefix + param.name] = role;
    }
    roles[kWarm + param.name] = {&param, kWarm};
    roles[kSumRest + param.name] = {&param, kSumRest};
  }
  for (const TensorEntry& entry : file.tensors()) {
    const auto rest = rest_in(entry.name);
    const auto role = rest ? roles.find(rest->tensor) : roles.end();
    if (role != roles.end()) roles[entry.name] = {role->second.param, rest_prefix(rest->group)};
  }
  return roles;
}

namespace {

// What is left of a matrix, of its moments in a small space: they are of its longer side, and the
// projector of its shorter one.
Cut projected(const Role& role, Cut matrix) {
  const bool tall = matrix.rows >= matrix.columns;
  auto& longer = tall ? matrix.kept_rows : matrix.kept_columns;
  auto& shorter = tall ? matrix.kept_columns : matrix.kept_rows;
  const Shape shape = role.shape();
  if (role.projector()) return {shape[0], shape[1], {}, std::move(shorter)};
  return {shape[0], shape[1], std::move(longer), {}};
}

// Indices along an axis where `of` structures of one width stand side by side, perhaps several
// times (q, k and v).
std::vector<int64_t> along_axis(const std::vector<int64_t>& kept, int64_t of, int64_t width,
                                int64_t extent) {
  std::vector<int64_t> indices;
  for (int64_t begin = 0; begin < extent; begin += of * width) {
    for (const int64_t structure : kept) {
      for (int64_t k = 0; k < width; ++k) indices.push_back(begin + structure * width + k);
    }
  }
  return indices;
}

// The rows of a block's modulation that belong to halves that stay: nothing if all do.
std::optional<std::vector<int64_t>> modulation_rows(const DitConfig& config,
                                                    const Survivor& block) {
  const BlockShape& shape = config.blocks[block.block];
  const int64_t half = 3 * config.width;
  std::vector<int64_t> rows;
  int64_t first = 0;
  for (const Structure kind : kStructures) {  // attention's come first
    if (structure_count(shape, kind) == 0) continue;
    for (int64_t i = 0; i < half && !block.of(kind).empty(); ++i) rows.push_back(first + i);
    first += half;
  }
  if (std::ssize(rows) == first) return std::nullopt;
  return rows;
}

}  // namespace

Cut cut_tensor(const Role& role, const Belonging& place, const DitConfig& config,
               const Survivor* block) {
  const ParamSpec& param = *role.param;
  if (role.rank > 0) {
    const Role of_matrix{&param, ""};
    return projected(role, cut_tensor(of_matrix, place, config, block));
  }
  // Of a sparse one, of the matrix that it is left of.
  const Shape shape = role.of_rows || role.of_columns ? role.shape() : param.shape;
  Cut cut{shape[0], element_count(shape) / std::max<int64_t>(1, shape[0]), {}, {}};
  if (block == nullptr) return cut;
  if (place.modulation() && !role.of_columns) cut.kept_rows = modulation_rows(config, *block);
  if (!place.member) return cut;
  const Membership& member = *place.member;
  // A number for each row knows nothing of columns, and the other way round.
  if ((role.of_rows && member.columns) || (role.of_columns && !member.columns)) return cut;
  const int64_t of = structure_count(config.blocks[block->block], member.kind);
  const auto& kept = block->of(member.kind);
  if (std::ssize(kept) == of) return cut;
  const bool vector = shape.size() == 1;
  const int64_t extent = member.columns && !vector ? cut.columns : cut.rows;
  auto indices = along_axis(kept, of, member.width, extent);
  (member.columns && !vector ? cut.kept_columns : cut.kept_rows) = std::move(indices);
  return cut;
}

Shape cut_shape(Shape shape, const Cut& cut) {
  if (cut.kept_rows) shape[0] = std::ssize(*cut.kept_rows);
  if (cut.kept_columns) shape[1] = std::ssize(*cut.kept_columns);
  return shape;
}

Staying staying(const Belonging& place, const Survivors& kept) {
  if (!place.block) return {};
  const auto found = std::find_if(kept.begin(), kept.end(),
                                  [&](const Survivor& each) { return each.block == *place.block; });
  if (found == kept.end() || (place.half && found->of(*place.half).empty())) return {false};
  return {true, &*found, static_cast<size_t>(found - kept.begin())};
}

CutElements::CutElements(const Cut& cut)
    : rows_(static_cast<size_t>(cut.rows), cut.kept_rows ? 0 : 1),
      columns_(static_cast<size_t>(cut.columns), cut.kept_columns ? 0 : 1) {
  if (cut.kept_rows) {
    for (const int64_t i : *cut.kept_rows) rows_[i] = 1;
  }
  if (cut.kept_columns) {
    for (const int64_t i : *cut.kept_columns) columns_[i] = 1;
  }
}

}  // namespace ebb
