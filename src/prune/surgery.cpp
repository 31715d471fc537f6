#include "prune/surgery.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "formats/safetensors_stream.h"
#include "prune/cut.h"
#include "state/matrix_stream.h"
#include "state/weights_model.h"

namespace ebb {

namespace {

constexpr auto kItem = static_cast<int64_t>(sizeof(float));

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
        roles_(roles_of(params_, file, info.galore_rank)),
        part_(kSurgeryPart / kItem) {
    std::vector<const TensorEntry*> entries;
    for (const TensorEntry& entry : file.tensors()) entries.push_back(&entry);
    std::sort(entries.begin(), entries.end(),
              [](const TensorEntry* a, const TensorEntry* b) { return a->begin < b->begin; });
    for (const TensorEntry* entry : entries) plan_tensor(*entry);
    for (Piece& piece : pieces_) {
      if (piece.sparse != nullptr && piece.role->prefix.empty()) plan_sparse(piece);
    }
  }

  void run(const std::filesystem::path& out, std::map<std::string, std::string> metadata) {
    SafetensorsWriter writer(out, tensors_, std::move(metadata), true);
    Collector to(writer);
    for (const Piece& piece : pieces_) {
      if (piece.sparse == nullptr) cut_dense(piece, to);
    }
    for (const Piece& piece : pieces_) {
      if (piece.sparse != nullptr && piece.role->prefix.empty()) sieve(piece, to, writer);
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
    std::string name;         // under the block's new number
    const Magnitude* sparse;  // of a matrix that is sparse afterwards; otherwise null
  };

  void add_gains(const std::vector<float>& gains, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      part_[i] = std::bit_cast<uint32_t>(std::bit_cast<float>(part_[i]) + gains.at(first + i));
    }
  }

  Cut cut_of(const Piece& piece) const {
    return cut_tensor(*piece.role, belonging(*piece.role->param, config_), config_, piece.block);
  }

  void plan_tensor(const TensorEntry& entry) {
    const Role& role = roles_.at(entry.name);
    if (role.begins_code()) return;
    const Belonging place = belonging(*role.param, config_);
    const Staying stay = staying(place, surgery_.kept);
    Piece piece{&entry, &role, stay.block, stay.stays, entry.name, nullptr};
    if (stay.block != nullptr) {
      piece.name = fmt::format("{}blocks.{}.{}", role.prefix, stay.place, place.within);
    }
    const auto left = surgery_.weights.find(role.param->name);
    if (stay.stays && left != surgery_.weights.end()) piece.sparse = &left->second;
    refuse_means(piece);
    refuse_projected(piece);
    pieces_.push_back(piece);
    if (!piece.stays || piece.sparse != nullptr) return;
    tensors_.push_back({piece.name, entry.type, cut_shape(entry.shape, cut_of(piece)), nullptr});
  }

  // Adafactor's are of whole rows and columns.
  void refuse_means(const Piece& piece) const {
    if (piece.sparse == nullptr || !(piece.role->of_rows || piece.role->of_columns)) return;
    fail(
        Exit::usage,
        fmt::format("--weights: {} has the state of adafactor, whose means of rows and columns say "
                    "nothing of single weights",
                    printable(file_.path().string())),
        "prune heads, MLP units or blocks instead");
  }

  // A projector is of the shorter side of a matrix that has more directions than it, and stays so.
  void refuse_projected(const Piece& piece) const {
    if (piece.role->rank == 0 || !piece.stays) return;
    const std::string where = printable(file_.path().string());
    if (piece.sparse != nullptr) {
      fail(Exit::usage,
           fmt::format("--weights: {} has moments of --galore {}, which say nothing of single "
                       "weights",
                       where, piece.role->rank),
           "prune heads, MLP units or blocks instead");
    }
    const Cut left = cut_tensor({piece.role->param, ""}, belonging(*piece.role->param, config_),
                                config_, piece.block);
    const bool tall = left.rows >= left.columns, stays = left.left_rows() >= left.left_columns();
    if (tall == stays && std::min(left.left_rows(), left.left_columns()) > piece.role->rank) return;
    fail(Exit::usage,
         fmt::format("prune: {} would be left of {}, of shape {}: moments of --galore {} in {} are "
                     "of another side of it, or of more directions than it has",
                     shape_text({left.left_rows(), left.left_columns()}), piece.role->param->name,
                     shape_text({left.rows, left.columns}), piece.role->rank, where),
         "remove less of it, or whole blocks");
  }

  // What a sparse matrix leaves stands together: the weight, its mask, and what is kept of it.
  void plan_sparse(const Piece& weight) {
    const Cut cut = cut_of(weight);
    tensors_.push_back({weight.name, TensorType::F32, {weight.sparse->left}, nullptr});
    tensors_.push_back({kMask + weight.name,
                        TensorType::U8,
                        {cut.left_rows(), mask_bytes(cut.left_columns())},
                        nullptr});
    for (const Piece* kept : kept_of(weight)) {
      tensors_.push_back({kept->name, TensorType::F32, {weight.sparse->left}, nullptr});
    }
  }

  std::vector<const Piece*> kept_of(const Piece& weight) const {
    std::vector<const Piece*> found;
    for (const Piece& piece : pieces_) {
      const bool own = piece.role->param == weight.role->param;
      if (own && !piece.role->prefix.empty() && !piece.role->mask()) found.push_back(&piece);
    }
    return found;
  }

  void cut_dense(const Piece& piece, Collector& to) {
    TensorStream stream(file_, *piece.from);
    const Cut cut = piece.stays ? cut_of(piece) : Cut{};
    const auto gains = surgery_.gains.find(piece.from->name);
    for (int64_t first = 0; stream.left() > 0;) {
      const int64_t bytes = std::min(kSurgeryPart, stream.left());
      stream.read(part_.data(), bytes);
      if (surgery_.fresh && piece.role->moment()) std::fill(part_.begin(), part_.end(), 0);
      if (gains != surgery_.gains.end()) add_gains(gains->second, first, bytes / kItem);
      if (piece.stays) collect(part_.data(), first, bytes / kItem, cut, to);
      first += bytes / kItem;
    }
    to.flush();
  }

  // The weight says which of its elements stay; then come their mask and what is kept of them.
  void sieve(const Piece& weight, Collector& to, SafetensorsWriter& writer) {
    const ParamSpec& param = *weight.role->param;
    const Cut cut = cut_of(weight);
    const CutElements structures(cut);
    MatrixBits stays(param.rows(), param.columns());
    Sieve sieve(*weight.sparse);
    MatrixStream stream(file_, param);
    pass_on(stream, to, [&](int64_t i, float value) {
      const bool stay = structures.stays(i) && stream.is_there(i) && sieve.keeps(value);
      if (stay) stays.set(i);
      return stay;
    });
    const MatrixBits mask = cut_bits(stays, cut);
    writer.write(mask.bytes().data(), std::ssize(mask.bytes()));
    for (const Piece* kept : kept_of(weight)) {
      MatrixStream own(file_, param, kept->role->prefix);
      const bool zero = surgery_.fresh && kept->role->moment();
      pass_on(
          own, to, [&](int64_t i, float) { return stays.at(i); }, zero);
    }
  }

  // Those elements that `stay` says, or as many zeros.
  template <typename Stay>
  void pass_on(MatrixStream& stream, Collector& to, Stay stay, bool as_zero = false) {
    const int64_t most = kSurgeryPart / kItem;
    auto* values = reinterpret_cast<float*>(part_.data());
    for (int64_t first = 0; stream.left() > 0;) {
      const int64_t count = std::min(most, stream.left());
      stream.read(values, count);
      int64_t left = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (stay(first + i, values[i])) values[left++] = as_zero ? 0 : values[i];
      }
      to.add(part_.data(), left);
      first += count;
    }
    to.flush();
  }

  static MatrixBits cut_bits(const MatrixBits& all, const Cut& cut) {
    const CutElements structures(cut);
    MatrixBits left(cut.left_rows(), cut.left_columns());
    for (int64_t i = 0, next = 0; i < cut.rows * cut.columns; ++i) {
      if (!structures.stays(i)) continue;
      if (all.at(i)) left.set(next);
      ++next;
    }
    return left;
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

void check_tensors(const SafetensorsReader& file, const CheckpointInfo& info) {
  const DitConfig& config = info.config;
  const std::string where = printable(file.path().string());
  constexpr const char* kHint = "the file is of another model, or was changed by others";
  verify_hashed_names(file);
  refuse_unknown_tensors(file, config);
  const std::vector<ParamSpec> params = parameters(config);
  for (const ParamSpec& param : params) {
    for (const std::string prefix : {"", kMask}) {
      if (!param.trained() || (!prefix.empty() && !param.sparse())) continue;
      if (file.find(prefix + param.name) != nullptr) continue;
      fail(Exit::disk, fmt::format("{}: no tensor {}{}", where, prefix, param.name), kHint);
    }
  }
  const auto roles = roles_of(params, file, info.galore_rank);
  for (const TensorEntry& entry : file.tensors()) {
    if (!roles.contains(entry.name)) {
      fail(Exit::disk,
           fmt::format("{}: found tensor {}, but no moments that it projects", where,
                       printable(entry.name)),
           kHint);
    }
    const Shape shape = roles.at(entry.name).shape();
    if (!roles.at(entry.name).begins_code() && entry.shape != shape) {
      fail(Exit::disk,
           fmt::format("{}: {} has shape {}, wanted {}", where, entry.name, shape_text(entry.shape),
                       shape_text(shape)),
           kHint);
    }
    const TensorType type = roles.at(entry.name).mask() ? TensorType::U8 : TensorType::F32;
    if (entry.type != type) {
      fail(Exit::disk,
           fmt::format("{}: {} is of type {}, wanted {}, as checkpoints are", where, entry.name,
                       type_name(entry.type), type_name(type)),
           kHint);
    }
  }
}

std::string with_shapes(const std::string& settings, const DitConfig& config) {
  const auto has = [&](const char* key) {
    return ("\n" + settings).find(fmt::format("\n{} = ", key)) != std::string::npos;
  };
  if (!has("depth")) return settings;
  const std::string before = has("heads") ? "heads = " : "depth = ";  // as `ebb train` has them
  std::string made;
  for (std::string_view rest = settings; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with("shapes = ")) continue;
    made += line.starts_with("depth = ") ? fmt::format("depth = {}\n", config.depth())
                                         : fmt::format("{}\n", line);
    if (line.starts_with(before)) {
      made += fmt::format("shapes = \"{}\"\n", shapes_text(config.blocks));
    }
  }
  return made;
}

DitConfig pruned_config(const DitConfig& config, const Surgery& surgery) {
  return with_weights(pruned_config(config, surgery.kept), config, surgery.kept, surgery.weights);
}

void write_pruned(const std::filesystem::path& out, const SafetensorsReader& file,
                  const CheckpointInfo& info, const Surgery& surgery) {
  CheckpointInfo pruned = info;
  pruned.config = pruned_config(info.config, surgery);
  validate(pruned.config);
  pruned.settings = with_shapes(info.settings, pruned.config);
  if (surgery.fresh) pruned.updates = 0;
  if (!info.pruning.begun.empty()) {
    pruned.pruning.begun.clear();
    for (const Survivor& block : surgery.kept) {
      pruned.pruning.begun.push_back(info.pruning.begun.at(static_cast<size_t>(block.block)));
    }
  }
  const PrunedRecord record =
      info.pruned.empty()
          ? PrunedRecord{}
          : pruned_from_json(info.pruned, info.config, file.path().string(), Exit::disk);
  pruned.pruned = pruned_to_json(in_first_parent(surgery.kept, record));
  Operation(file, info, surgery).run(out, metadata_of(file, pruned));
}

}  // namespace ebb
