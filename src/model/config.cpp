#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

constexpr int64_t kMostWidth = 65536;

}  // namespace

void set_blocks(DitConfig& config, int64_t depth, int64_t heads) {
  if (depth < 1 || depth > 1024) {
    fail(Exit::usage, fmt::format("--depth: found {}, wanted 1 to 1024", depth));
  }
  if (config.width < 4 || config.width > kMostWidth) {
    fail(Exit::usage, fmt::format("--width: found {}, wanted 4 to {}", config.width, kMostWidth));
  }
  if (heads < 1 || config.width % heads != 0) {
    fail(Exit::usage,
         fmt::format("--heads: width {} is not divisible by {} heads", config.width, heads),
         "choose --width as a multiple of --heads");
  }
  config.head_width = config.width / heads;
  config.blocks.assign(depth, BlockShape{heads, 4 * config.width});
}

std::vector<BlockShape> parse_shapes(const std::string& text, const std::string& where) {
  constexpr size_t kMostBlocks = 1024;
  std::vector<BlockShape> blocks;
  for (const std::string& part : split(text, ',')) {
    const auto times = split(part, '*');
    const auto sizes = split(times[0], ':');
    if (times.size() > 2 || sizes.size() != 2) {
      fail(
          Exit::usage,
          fmt::format("{}: found '{}', wanted HEADS:MLP or HEADS:MLP*BLOCKS", where,
                      printable(part)),
          "6:1536*4,3:768*8 is four blocks of 6 heads and an MLP of 1536, then eight smaller ones");
    }
    const BlockShape shape{parse_int(sizes[0], where), parse_int(sizes[1], where)};
    const int64_t count = times.size() == 2 ? parse_int(times[1], where) : 1;
    if (count < 1 || count > static_cast<int64_t>(kMostBlocks - blocks.size())) {
      fail(Exit::usage, fmt::format("{}: found {} blocks of {}, wanted 1 to {} in all", where,
                                    count, times[0], kMostBlocks));
    }
    blocks.insert(blocks.end(), count, shape);
  }
  return blocks;
}

std::string shapes_text(const std::vector<BlockShape>& blocks) {
  std::string text;
  for (size_t i = 0, end = 0; i < blocks.size(); i = end) {
    while (end < blocks.size() && blocks[end].heads == blocks[i].heads &&
           blocks[end].mlp == blocks[i].mlp) {
      ++end;
    }
    text += fmt::format("{}{}:{}{}", text.empty() ? "" : ",", blocks[i].heads, blocks[i].mlp,
                        end - i > 1 ? fmt::format("*{}", end - i) : "");
  }
  return text;
}

NamedSize named_size(const std::string& name, const std::string& where) {
  static const std::map<std::string, std::array<int64_t, 3>> kSizes = {
      {"S", {384, 12, 6}}, {"B", {768, 12, 12}}, {"L", {1024, 24, 16}}, {"XL", {1152, 28, 16}}};
  std::vector<std::string> known;
  for (const auto& [letter, size] : kSizes) {
    for (const int patch : {2, 4, 8}) {
      known.push_back(fmt::format("DiT-{}/{}", letter, patch));
      if (known.back() == name) return {size[0], size[1], size[2], patch};
    }
  }
  fail(Exit::usage,
       fmt::format("{}: '{}' is not a known size{}", where, printable(name),
                   did_you_mean(name, known)),
       "wanted DiT-S, -B, -L or -XL with /2, /4 or /8, or any of --width --depth --heads --patch");
}

namespace {

// Sizes that are each allowed can be absurd together. Bytes are counted in 64 bits: far below that,
// no machine can hold the model or what one sample leaves behind in it.
void check_extent(const DitConfig& c) {
  constexpr double kMost = 0x1p44;
  const auto D = static_cast<double>(c.width);
  const auto T = static_cast<double>(c.tokens());
  double weights = T * D + D * static_cast<double>(c.classes);
  double activations = 0;
  for (const BlockShape& shape : c.blocks) {
    const double inner = static_cast<double>(shape.heads) * static_cast<double>(c.head_width);
    const auto mlp = static_cast<double>(shape.mlp);
    weights += D * (4 * inner + 2 * mlp + 6 * D);
    activations += T * (4 * inner + 2 * mlp + 6 * D);
  }
  for (const auto& [what, count] : {std::pair("weights", weights), {"activations", activations}}) {
    if (count <= kMost) continue;
    fail(Exit::usage,
         fmt::format("a model of {:.3g} {}, wanted at most {:.3g}", count, what, kMost),
         "choose smaller sizes");
  }
}

}  // namespace

void validate(const DitConfig& c) {
  const auto within = [](const char* flag, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
      fail(Exit::usage, fmt::format("{}: found {}, wanted {} to {}", flag, value, low, high));
    }
  };
  within("--width", c.width, 4, kMostWidth);
  within("head width", c.head_width, 1, c.width);
  within("--depth", c.depth(), 1, 1024);
  within("--patch", c.patch, 1, 256);
  within("--image-size", c.image_size, 1, 16384);
  within("--channels", c.channels, 1, 1024);
  within("--classes", c.classes, 0, 10'000'000);
  if (c.width % 4 != 0) {
    fail(Exit::usage, fmt::format("--width: {} is not a multiple of 4", c.width),
         "the position table has sines and cosines of rows and columns: a quarter of the width "
         "each");
  }
  if (c.image_size % c.patch != 0) {
    fail(Exit::usage,
         fmt::format("--patch: image size {} is not divisible by patch {}", c.image_size, c.patch),
         "choose --image-size as a multiple of --patch");
  }
  for (int64_t i = 0; i < c.depth(); ++i) {
    const BlockShape& shape = c.blocks[i];
    if (shape.heads < 0 || shape.mlp < 0 || shape.chunks() == 0 || shape.heads > 65536 ||
        shape.mlp > 1 << 20) {
      fail(Exit::usage, fmt::format("block {}: {} heads and an MLP of {} are not a block", i,
                                    shape.heads, shape.mlp));
    }
  }
  check_extent(c);
  for (const ParamSpec& spec : parameters(c)) {
    if (spec.left >= 0 && spec.left <= element_count(spec.shape)) continue;
    fail(Exit::usage, fmt::format("{}: {} of its {} weights are left", spec.name, spec.left,
                                  element_count(spec.shape)));
  }
}

void check_countable(const DitConfig& c, int64_t batch) {
  // A profile writes a dozen blocks of each shape, and several steps are summed.
  constexpr double kMostBytes = 0x1p56;
  constexpr double kWritten = 64;
  const auto rows = static_cast<double>(batch) * static_cast<double>(c.tokens());
  double widest = 0;
  for (const BlockShape& block : c.blocks) {
    widest = std::max(widest, 6.0 * static_cast<double>(block.heads * c.head_width) +
                                  4.0 * static_cast<double>(block.mlp));
  }
  const double row = widest + 12.0 * static_cast<double>(c.width) +
                     4.0 * static_cast<double>(c.patch * c.patch * c.channels);
  const double depth = std::max(kWritten, static_cast<double>(c.depth()));
  const double bytes = 4 * rows * row * depth + 20.0 * static_cast<double>(parameter_count(c));
  if (bytes <= kMostBytes) return;
  fail(Exit::usage,
       fmt::format("a batch of {} with {} tokens each, {} blocks of width {}: about {:.1g} bytes, "
                   "more than any machine holds",
                   batch, c.tokens(), c.depth(), c.width, bytes),
       "choose a smaller model, image or batch");
}

namespace {

class Specs {
 public:
  explicit Specs(const DitConfig& config) : config_(config) {}

  void tensor(const std::string& name, Shape shape, Init init) {
    made.push_back({prefix + name, layer, std::move(shape), init});
  }
  void linear(const std::string& name, Shape weight, Init init = Init::xavier, LeftAt at = {}) {
    const int64_t out = weight[0];
    made.push_back({prefix + name + ".weight", layer, std::move(weight), init, true, at});
    if (at.matrix >= 0) made.back().left = left(at);
    tensor(name + ".bias", {out}, Init::zero);
  }

  std::vector<ParamSpec> made;
  std::string prefix, layer = kEmbedding;

 private:
  int64_t left(const LeftAt& at) const {
    return at.block < 0 ? config_.left[at.matrix] : config_.blocks[at.block].left[at.matrix];
  }
  const DitConfig& config_;
};

}  // namespace

std::string block_layer(int64_t block) { return fmt::format("block{}", block); }

std::vector<ParamSpec> parameters(const DitConfig& c) {
  const int64_t D = c.width;
  Specs specs(c);
  specs.tensor(kPositionTable, {1, c.tokens(), D}, Init::positions);
  specs.linear("x_embedder.proj", {D, c.channels, c.patch, c.patch});
  specs.linear("t_embedder.mlp.0", {D, kTimeFeatures}, Init::normal, {-1, DitConfig::kTime0});
  specs.linear("t_embedder.mlp.2", {D, D}, Init::normal, {-1, DitConfig::kTime2});
  if (c.classes > 0) {
    specs.tensor(kLabelTable, {c.classes + 1, D}, Init::normal);
  }
  for (int64_t i = 0; i < c.depth(); ++i) {
    const BlockShape& shape = c.blocks[i];
    const int64_t inner = shape.heads * c.head_width;
    specs.prefix = fmt::format("blocks.{}.", i);
    specs.layer = block_layer(i);
    const auto linear = [&](const char* name, Shape weight, int matrix, Init init = Init::xavier) {
      specs.linear(name, std::move(weight), init, {i, matrix});
    };
    if (shape.heads > 0) linear("attn.qkv", {3 * inner, D}, BlockShape::kQkv);
    if (shape.heads > 0 && c.qk_norm != QkNormKind::none) {
      for (const char* part : {"attn.q_norm", "attn.k_norm"}) {
        specs.tensor(fmt::format("{}.weight", part), {c.head_width}, Init::one);
        if (c.qk_norm == QkNormKind::layer) {
          specs.tensor(fmt::format("{}.bias", part), {c.head_width}, Init::zero);
        }
      }
    }
    if (shape.heads > 0) linear("attn.proj", {D, inner}, BlockShape::kProj);
    if (shape.mlp > 0) {
      linear("mlp.fc1", {shape.mlp, D}, BlockShape::kFc1);
      linear("mlp.fc2", {D, shape.mlp}, BlockShape::kFc2);
    }
    linear("adaLN_modulation.1", {shape.chunks() * D, D}, BlockShape::kModulation, Init::zero);
  }
  specs.prefix = "final_layer.";
  specs.layer = kFinalLayer;
  specs.linear("linear", {c.patch * c.patch * c.out_channels(), D}, Init::zero);
  specs.linear("adaLN_modulation.1", {2 * D, D}, Init::zero, {-1, DitConfig::kFinalModulation});
  return std::move(specs.made);
}

int64_t parameter_count(const DitConfig& config) {
  int64_t count = 0;
  for (const ParamSpec& spec : parameters(config)) count += spec.count();
  return count;
}

int64_t& left_of(DitConfig& config, const LeftAt& at) {
  return at.block < 0 ? config.left[at.matrix] : config.blocks[at.block].left[at.matrix];
}

void set_density(DitConfig& config, double share) {
  for (const ParamSpec& spec : parameters(config)) {
    if (!spec.prunable()) continue;
    const auto all = static_cast<double>(element_count(spec.shape));
    left_of(config, spec.left_at) = std::max<int64_t>(1, std::llrint(share * all));
  }
}

double density_of(const DitConfig& config) {
  double all = 0, left = 0;
  for (const ParamSpec& spec : parameters(config)) {
    if (!spec.prunable()) continue;
    all += static_cast<double>(element_count(spec.shape));
    left += static_cast<double>(spec.count());
  }
  return left / all;
}

bool has_density(const DitConfig& config, double share) {
  if (share == 1) return density_of(config) == 1;
  DitConfig said = config;
  set_density(said, share);
  return said == config;
}

double model_flops_per_sample(const DitConfig& c) {
  const auto D = static_cast<double>(c.width);
  const auto T = static_cast<double>(c.tokens());
  const auto patch_area = static_cast<double>(c.patch * c.patch);
  double macs = T * D * patch_area * static_cast<double>(c.channels);  // patch embedding
  macs += kTimeFeatures * D + D * D;                                   // timestep MLP
  for (const BlockShape& shape : c.blocks) {
    const auto inner = static_cast<double>(shape.heads * c.head_width);
    macs += static_cast<double>(shape.chunks()) * D * D;  // adaLN
    macs += T * D * 4 * inner + 2 * T * T * inner;        // qkv, proj, attention
    macs += T * D * 2 * static_cast<double>(shape.mlp);   // MLP
  }
  macs += 2 * D * D + T * D * patch_area * static_cast<double>(c.out_channels());
  return 3 * 2 * macs;
}

}  // namespace ebb
