#include "model/slices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/structure.h"

namespace ebb {

namespace {

struct PartOfBlock {
  Share heads, mlp;
};

// Heads as equal as can be, and columns of the MLP so that all have about as many weights. Each has
// one of both at least.
PartOfBlock part_of(const BlockShape& block, const DitConfig& config, const RankPlace& place) {
  const int64_t parts = place.tensor, part = place.part();
  const int64_t head = structure_params(config, Structure::head);
  const int64_t column = structure_params(config, Structure::mlp);
  const int64_t all = block.heads * head + block.mlp * column;
  // The columns of the parts before the n-th.
  const auto columns_before = [&](int64_t n) {
    int64_t before = 0;
    for (int64_t i = 1; i <= n && block.mlp > 0; ++i) {
      const int64_t heads = nth_share(block.heads, i, parts).first;
      const int64_t wanted = (i * all - parts * heads * head) / (parts * column);
      before = std::clamp(wanted, before + 1, block.mlp - (parts - i));
    }
    return before;
  };
  const int64_t first = columns_before(part);
  const int64_t end = part == parts - 1 ? block.mlp : columns_before(part + 1);
  return {nth_share(block.heads, part, parts), {first, end - first}};
}

// Along the axis that heads or columns of the MLP lie on, once for each of q, k and v.
std::vector<Slice::Run> runs_of(const Membership& member, int64_t length, int64_t count,
                                const Share& own) {
  std::vector<Slice::Run> runs;
  const int64_t each = count * member.width;
  for (int64_t begin = 0; begin < length; begin += each) {
    runs.push_back({begin + own.first * member.width, own.count * member.width});
  }
  return runs;
}

Slice slice_of(const ParamSpec& spec, const DitConfig& config, const RankPlace& place) {
  const Belonging at = belonging(spec, config);
  if (at.modulation()) {
    const Share rows = nth_share(spec.rows(), place.part(), place.tensor);
    return {spec.shape, false, {{rows.first, rows.count}}};
  }
  if (!at.member) return {};
  const BlockShape& block = config.blocks[*at.block];
  const PartOfBlock part = part_of(block, config, place);
  const Share& own = at.member->kind == Structure::head ? part.heads : part.mlp;
  const int64_t length = at.member->columns ? spec.columns() : spec.rows();
  return {spec.shape, at.member->columns,
          runs_of(*at.member, length, structure_count(block, at.member->kind), own)};
}

}  // namespace

DitConfig sliced(const DitConfig& whole, const RankPlace& place) {
  if (place.tensor == 1) return whole;
  const std::string why = cannot_slice(whole, place.tensor);
  require(why.empty(), "model: {}", why);
  DitConfig made = whole;
  for (BlockShape& block : made.blocks) {
    const PartOfBlock part = part_of(block, whole, place);
    block.heads = part.heads.count;
    block.mlp = part.mlp.count;
  }
  return made;
}

std::vector<ParamSpec> sliced_parameters(const DitConfig& whole, const RankPlace& place) {
  std::vector<ParamSpec> specs = parameters(whole);
  if (place.tensor == 1) return specs;
  for (ParamSpec& spec : specs) {
    spec.slice = slice_of(spec, whole, place);
    spec.of_all_heads =
        !spec.slice.any() && belonging(spec, whole).within.find("_norm.") != std::string::npos;
    if (!spec.slice.any()) continue;
    int64_t& along = spec.shape[spec.slice.columns ? 1 : 0];
    along = 0;
    for (const Slice::Run& run : spec.slice.runs) along += run.count;
  }
  return specs;
}

std::string cannot_slice(const DitConfig& whole, int parts) {
  if (parts == 1) return "";
  for (const ParamSpec& spec : parameters(whole)) {
    if (spec.sparse())
      return fmt::format("the model has sparse weights ({}), which are not cut", spec.name);
  }
  for (int64_t i = 0; i < whole.depth(); ++i) {
    const BlockShape& block = whole.blocks[i];
    for (const Structure kind : kStructures) {
      const int64_t count = structure_count(block, kind);
      if (count == 0 || count >= parts) continue;
      return fmt::format("{} has {} {}, fewer than ranks", block_layer(i), count,
                         kind == Structure::head ? "heads" : "columns of its MLP");
    }
  }
  return "";
}

}  // namespace ebb
