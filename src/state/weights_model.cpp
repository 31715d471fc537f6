#include "state/weights_model.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "formats/model_json.h"
#include "model/optimizer.h"

namespace ebb {

namespace {

constexpr const char* kWanted = "wanted a DiT under the reference's tensor names";

// The shapes of a file's tensors, told as a model.
class ShapesOf {
 public:
  ShapesOf(const SafetensorsReader& file, const BesideTensors& said) : file_(file), said_(said) {}

  DitConfig model() {
    refuse_masks();
    DitConfig c;
    const Shape& embed = shape("x_embedder.proj.weight", 4);
    c.width = embed[0];
    c.channels = embed[1];
    c.patch = embed[2];
    if (embed[3] != c.patch) {
      refuse(fmt::format("x_embedder.proj.weight has patches of {}x{}, wanted square ones", c.patch,
                         embed[3]),
             kWanted);
    }
    c.classes = has(kLabelTable) ? shape(kLabelTable, 2)[0] - 1 : 0;
    c.image_size = image_size(c);
    c.objective = said_.objective;
    c.learn_sigma = learns_sigma(c);
    int64_t depth = 0;
    while (has(block(depth, "adaLN_modulation.1.weight"))) ++depth;
    while (with_heads_ < depth && !has(block(with_heads_, "attn.qkv.weight"))) ++with_heads_;
    c.qk_norm = qk_norm();
    c.head_width = head_width(c, depth);
    for (int64_t i = 0; i < depth; ++i) c.blocks.push_back(block_shape(c, i));
    return c;
  }

 private:
  static std::string block(int64_t i, const char* name) {
    return fmt::format("blocks.{}.{}", i, name);
  }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[noreturn]] void refuse(const std::string& what, const std::string& hint = kWanted) const {
    fail(Exit::disk, fmt::format("{}: {}", file_.path().string(), what), hint);
  }
  void refuse_masks() const {
    for (const TensorEntry& entry : file_.tensors()) {
      if (!entry.name.starts_with(kMask)) continue;
      refuse(fmt::format("{} is there, but no {} that says which model was pruned", entry.name,
                         kModelKey),
             "take the file as Ebb wrote it, or what `ebb convert` makes of it");
    }
  }
  const Shape& shape(const std::string& name, size_t rank) const {
    const TensorEntry* entry = file_.find(name);
    if (entry == nullptr || entry->shape.size() != rank || entry->count() == 0) {
      refuse(fmt::format("no tensor {} of {} dimensions", name, rank));
    }
    return entry->shape;
  }

  int64_t image_size(const DitConfig& c) const {
    if (!has(kPositionTable)) return said_.image_size;
    const int64_t tokens = shape(kPositionTable, 3)[1];
    const auto grid = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(tokens))));
    if (grid * grid != tokens) refuse(fmt::format("{} of {} tokens", kPositionTable, tokens));
    return grid * c.patch;
  }

  bool learns_sigma(const DitConfig& c) const {
    const int64_t rows = shape("final_layer.linear.weight", 2)[0];
    const int64_t once = c.channels * c.patch * c.patch;
    if (rows == once) return false;
    if (rows == 2 * once && c.objective == Objective::ddpm) return true;
    refuse(fmt::format("final_layer.linear.weight has {} rows, wanted {}", rows,
                       c.objective == Objective::ddpm
                           ? fmt::format("{}, or {} with a learned sigma", once, 2 * once)
                           : fmt::format("{} for --objective flow", once)),
           c.objective == Objective::ddpm ? kWanted : "a model that learns sigma is of ddpm");
  }

  QkNormKind qk_norm() const {
    if (!has(block(with_heads_, "attn.q_norm.weight"))) return QkNormKind::none;
    return has(block(with_heads_, "attn.q_norm.bias")) ? QkNormKind::layer : QkNormKind::rms;
  }

  int64_t head_width(const DitConfig& c, int64_t depth) const {
    if (c.qk_norm != QkNormKind::none) return shape(block(with_heads_, "attn.q_norm.weight"), 1)[0];
    if (said_.heads > 0) {
      if (c.width % said_.heads == 0) return c.width / said_.heads;
      fail(Exit::usage, fmt::format("--heads: {} do not divide the width of {}, {}", said_.heads,
                                    file_.path().string(), c.width));
    }
    for (const char* name : {"DiT-S/2", "DiT-B/2", "DiT-L/2", "DiT-XL/2"}) {
      const NamedSize size = named_size(name);
      if (c.width == size.width && depth == size.depth) return size.width / size.heads;
    }
    refuse("the number of heads is not in the file", "give --heads");
  }

  // Pruned blocks have fewer heads or a narrower MLP, or none of either.
  BlockShape block_shape(const DitConfig& c, int64_t i) const {
    const int64_t mlp =
        has(block(i, "mlp.fc1.weight")) ? shape(block(i, "mlp.fc1.weight"), 2)[0] : 0;
    if (!has(block(i, "attn.qkv.weight"))) return {0, mlp};
    const int64_t rows = shape(block(i, "attn.qkv.weight"), 2)[0];
    if (rows % (3 * c.head_width) != 0) {
      refuse(fmt::format("{} has {} rows, wanted 3 times a number of heads of width {}",
                         block(i, "attn.qkv.weight"), rows, c.head_width),
             "give the right --heads");
    }
    return {rows / (3 * c.head_width), mlp};
  }

  const SafetensorsReader& file_;
  const BesideTensors& said_;
  int64_t with_heads_ = 0;  // the first block that has any
};

}  // namespace

DitConfig model_of(const SafetensorsReader& file, const BesideTensors& said) {
  const auto found = file.metadata().find(kModelKey);
  if (found != file.metadata().end()) {
    return model_from_json(found->second, file.path().string(), Exit::disk);
  }
  const DitConfig config = ShapesOf(file, said).model();
  try {
    validate(config);
  } catch (const Error& e) {
    fail(Exit::disk,
         fmt::format("{}: its tensors are no model: {}", file.path().string(), e.what()), e.hint());
  }
  return config;
}

void refuse_unknown_tensors(const SafetensorsReader& file, const DitConfig& config) {
  std::set<std::string> known;
  const std::vector<std::string> prefixes = saved_prefixes();
  for (const ParamSpec& spec : parameters(config)) {
    known.insert(spec.name);
    if (spec.sparse()) known.insert(kMask + spec.name);
    if (!spec.trained()) continue;
    for (const std::string& prefix : prefixes) known.insert(prefix + spec.name);
    known.insert(kWarm + spec.name);
    known.insert(kSumRest + spec.name);
  }
  const std::string* first = nullptr;
  int64_t others = -1;
  for (const TensorEntry& entry : file.tensors()) {
    const auto rest = rest_in(entry.name);
    if (known.count(rest ? rest->tensor : entry.name) != 0) continue;
    if (first == nullptr) first = &entry.name;
    ++others;
  }
  if (first == nullptr) return;
  fail(
      Exit::disk,
      fmt::format("{}: found tensor {}{}, which a DiT of {} blocks, {} classes and qk-norm {} does "
                  "not have",
                  file.path().string(), printable(*first),
                  others > 0 ? fmt::format(" (and {} more)", others) : "", config.depth(),
                  config.classes, qk_norm_name(config.qk_norm)),
      file.metadata().count(kModelKey) != 0
          ? fmt::format("make {} in the file's metadata describe it, or take the tensor out",
                        kModelKey)
          : "take the tensor out of the file, if it is no part of the model");
}

}  // namespace ebb
