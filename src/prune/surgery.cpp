#include "prune/surgery.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "formats/safetensors_stream.h"
#include "model/optimizer.h"
#include "state/weights_model.h"

namespace ebb {

namespace {

constexpr auto kItem = static_cast<int64_t>(sizeof(float));

// What a tensor of a checkpoint is: a parameter, or what the optimizer or the average keeps of one.
struct Role {
  const ParamSpec* param;
  std::string prefix;
  bool of_rows = false, of_columns = false;  // Adafactor's: a number for each row, or each column

  bool moment() const { return !prefix.empty() && prefix != kAverage; }
  Shape shape() const {
    const int64_t rows = param->shape[0];
    if (of_rows) return {rows};
    if (of_columns) return {element_count(param->shape) / rows};
    return param->shape;
  }
};

std::map<std::string, Role> roles_of(const std::vector<ParamSpec>& params) {
  std::map<std::string, Role> roles;
  const std::vector<std::string> prefixes = saved_prefixes();
  for (const ParamSpec& param : params) {
    roles[param.name] = {&param, ""};
    if (!param.trained()) continue;
    for (const std::string& prefix : prefixes) {
      roles[prefix + param.name] = {&param, prefix, prefix == "v_row.", prefix == "v_col."};
    }
  }
  return roles;
}

// Which numbers of a tensor stay, as rows and columns; nothing said of an axis: all of it.
struct Cut {
  int64_t rows, columns;
  std::optional<std::vector<int64_t>> kept_rows, kept_columns;

  bool whole() const { return !kept_rows && !kept_columns; }
};

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

Cut cut_tensor(const Role& role, const Belonging& place, const DitConfig& config,
               const Survivor* block) {
  const Shape shape = role.shape();
  const int64_t count = element_count(shape);
  Cut cut{shape[0], count / std::max<int64_t>(1, shape[0]), {}, {}};
  if (block == nullptr || !place.member) return cut;
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

// What a run of numbers of a tensor leaves behind, collected to large writes.
class Collector {
 public:
  explicit Collector(SafetensorsWriter& to) : to_(to) { held_.reserve(kSurgeryPart / kItem); }

  void add(const uint32_t* items, int64_t count) {
    while (count > 0) {
      const int64_t n = std::min(count, room());
      held_.insert(held_.end(), items, items + n);
      items += n;
      count -= n;
      if (room() == 0) flush();
    }
  }
  // items[i - first] for each i.
  void add_chosen(const uint32_t* items, int64_t first, const int64_t* chosen, int64_t count) {
    while (count > 0) {
      const int64_t n = std::min(count, room());
      const size_t at = held_.size();
      held_.resize(at + static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) held_[at + i] = items[chosen[i] - first];
      chosen += n;
      count -= n;
      if (room() == 0) flush();
    }
  }
  void flush() {
    to_.write(held_.data(), std::ssize(held_) * kItem);
    held_.clear();
  }

 private:
  int64_t room() const { return kSurgeryPart / kItem - std::ssize(held_); }

  SafetensorsWriter& to_;
  std::vector<uint32_t> held_;  // bits of fp32, as they are
};

// Numbers [first, first + count) of a tensor: those that the cut leaves.
void collect(const uint32_t* items, int64_t first, int64_t count, const Cut& cut, Collector& to) {
  if (cut.whole()) return to.add(items, count);
  for (int64_t i = 0; i < count;) {
    const int64_t row = (first + i) / cut.columns, column = (first + i) % cut.columns;
    const int64_t n = std::min(count - i, cut.columns - column);
    if (cut.kept_rows && !std::binary_search(cut.kept_rows->begin(), cut.kept_rows->end(), row)) {
      i += n;
      continue;
    }
    if (!cut.kept_columns) {
      to.add(items + i, n);
    } else {
      const auto& kept = *cut.kept_columns;
      const auto begin = std::lower_bound(kept.begin(), kept.end(), column);
      const auto end = std::lower_bound(begin, kept.end(), column + n);
      to.add_chosen(items + i, column, kept.data() + (begin - kept.begin()), end - begin);
    }
    i += n;
  }
}

class Operation {
 public:
  Operation(const SafetensorsReader& file, const CheckpointInfo& info, const Surgery& surgery)
      : file_(file),
        config_(info.config),
        surgery_(surgery),
        params_(parameters(info.config)),
        roles_(roles_of(params_)),
        part_(kSurgeryPart / kItem) {
    std::vector<const TensorEntry*> entries;
    for (const TensorEntry& entry : file.tensors()) entries.push_back(&entry);
    std::sort(entries.begin(), entries.end(),
              [](const TensorEntry* a, const TensorEntry* b) { return a->begin < b->begin; });
    for (const TensorEntry* entry : entries) plan_tensor(*entry);
  }

  void run(const std::filesystem::path& out, std::map<std::string, std::string> metadata) {
    SafetensorsWriter writer(out, tensors_, std::move(metadata), true);
    Collector to(writer);
    for (const Piece& piece : pieces_) {
      TensorStream stream(file_, *piece.from);
      const Cut cut = piece.stays ? cut_of(piece) : Cut{};
      for (int64_t first = 0; stream.left() > 0;) {
        const int64_t bytes = std::min(kSurgeryPart, stream.left());
        stream.read(part_.data(), bytes);
        if (surgery_.fresh && piece.role->moment()) std::fill(part_.begin(), part_.end(), 0);
        if (piece.stays) collect(part_.data(), first, bytes / kItem, cut, to);
        first += bytes / kItem;
      }
      to.flush();
    }
    writer.commit();
  }

 private:
  // Which indices stay is made out when its turn comes: of all tensors together they take more than
  // the parts do.
  struct Piece {
    const TensorEntry* from;
    const Role* role;
    const Survivor* block;  // null: of no block
    bool stays;
  };

  Cut cut_of(const Piece& piece) const {
    return cut_tensor(*piece.role, belonging(*piece.role->param, config_), config_, piece.block);
  }

  void plan_tensor(const TensorEntry& entry) {
    const Role& role = roles_.at(entry.name);
    const Belonging place = belonging(*role.param, config_);
    Piece piece{&entry, &role, nullptr, true};
    std::string name = entry.name;
    if (place.block) {
      const auto& kept = surgery_.kept;
      const auto found = std::find_if(kept.begin(), kept.end(), [&](const Survivor& each) {
        return each.block == *place.block;
      });
      piece.stays = found != kept.end();
      if (piece.stays) {
        piece.block = &*found;
        name = fmt::format("{}blocks.{}.{}", role.prefix, found - kept.begin(), place.within);
      }
    }
    pieces_.push_back(piece);
    if (!piece.stays) return;
    tensors_.push_back({name, entry.type, cut_shape(entry.shape, cut_of(piece)), nullptr});
  }

  const SafetensorsReader& file_;
  const DitConfig& config_;
  const Surgery& surgery_;
  const std::vector<ParamSpec> params_;
  const std::map<std::string, Role> roles_;
  std::vector<uint32_t> part_;
  std::vector<TensorData> tensors_;  // of the file that is written
  std::vector<Piece> pieces_;        // of the one that is read, in the order of its bytes
};

// Of what others have put beside Ebb's own entries nothing is lost.
std::map<std::string, std::string> metadata_of(const SafetensorsReader& file,
                                               const CheckpointInfo& info) {
  std::map<std::string, std::string> metadata = checkpoint_metadata(info);
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with("ebb.") && !key.starts_with("xxh3.")) metadata[key] = value;
  }
  return metadata;
}

}  // namespace

void check_tensors(const SafetensorsReader& file, const DitConfig& config) {
  const std::string where = printable(file.path().string());
  constexpr const char* kHint = "the file is of another model, or was changed by others";
  verify_hashed_names(file);
  refuse_unknown_tensors(file, config);
  const std::vector<ParamSpec> params = parameters(config);
  for (const ParamSpec& param : params) {
    if (!param.trained() || file.find(param.name) != nullptr) continue;
    fail(Exit::disk, fmt::format("{}: no tensor {}", where, param.name), kHint);
  }
  const auto roles = roles_of(params);
  for (const TensorEntry& entry : file.tensors()) {
    const Shape shape = roles.at(entry.name).shape();
    if (entry.shape != shape) {
      fail(Exit::disk,
           fmt::format("{}: {} has shape {}, wanted {}", where, entry.name, shape_text(entry.shape),
                       shape_text(shape)),
           kHint);
    }
    if (entry.type != TensorType::F32) {
      fail(Exit::disk,
           fmt::format("{}: {} is of type {}, wanted F32, as checkpoints are", where, entry.name,
                       type_name(entry.type)),
           kHint);
    }
  }
}

std::string with_shapes(const std::string& settings, const DitConfig& config) {
  std::string made;
  for (std::string_view rest = settings; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with("shapes = ")) continue;
    if (line.starts_with("depth = ")) {
      made +=
          fmt::format("depth = {}\nshapes = \"{}\"\n", config.depth(), shapes_text(config.blocks));
    } else {
      made += fmt::format("{}\n", line);
    }
  }
  return made;
}

void write_pruned(const std::filesystem::path& out, const SafetensorsReader& file,
                  const CheckpointInfo& info, const Surgery& surgery) {
  CheckpointInfo pruned = info;
  pruned.config = pruned_config(info.config, surgery.kept);
  validate(pruned.config);
  pruned.settings = with_shapes(info.settings, pruned.config);
  if (surgery.fresh) pruned.updates = 0;
  const PrunedRecord record =
      info.pruned.empty()
          ? PrunedRecord{}
          : pruned_from_json(info.pruned, info.config, file.path().string(), Exit::disk);
  pruned.pruned = pruned_to_json(in_first_parent(surgery.kept, record));
  Operation(file, info, surgery).run(out, metadata_of(file, pruned));
}

}  // namespace ebb
