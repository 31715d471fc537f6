// The shape of a DiT, and the parameters that follow from it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/buffer.h"
#include "program/ops.h"

namespace ebb {

// Heads and MLP width are each block's own: pruned models have uneven ones. A block without heads,
// or without an MLP, is half a block: its modulation has no chunks for the missing half.
struct BlockShape {
  // The matrices whose weights can be pruned one by one.
  enum Matrix : int { kQkv, kProj, kFc1, kFc2, kModulation, kMatrices };

  int64_t heads, mlp;
  std::array<int64_t, kMatrices> left = {};  // of each one's weights; 0: none was pruned
  int64_t chunks() const { return (heads > 0 ? 3 : 0) + (mlp > 0 ? 3 : 0); }
  bool operator==(const BlockShape&) const = default;
};

struct DitConfig {
  int64_t width = 384, patch = 2, head_width = 64;
  int64_t image_size = 32, channels = 4, classes = 1000;
  bool learn_sigma = true;
  Objective objective = Objective::ddpm;
  QkNormKind qk_norm = QkNormKind::none;
  std::vector<BlockShape> blocks;
  // As in a block: the time embedder's two, and that of the final modulation. What reads the image
  // and what makes the output stay whole.
  enum Matrix : int { kTime0, kTime2, kFinalModulation, kMatrices };
  std::array<int64_t, kMatrices> left = {};

  int64_t depth() const { return static_cast<int64_t>(blocks.size()); }
  int64_t tokens() const { return (image_size / patch) * (image_size / patch); }
  int64_t out_channels() const { return learn_sigma ? 2 * channels : channels; }
  int64_t pixels() const { return image_size * image_size; }
  int32_t null_label() const { return static_cast<int32_t>(classes); }
  bool operator==(const DitConfig&) const = default;
};

// Even blocks: `heads` heads and an MLP of 4 x width each.
void set_blocks(DitConfig& config, int64_t depth, int64_t heads);

// "6:1536*4,3:768*8": heads and MLP width of so many blocks, then of others; and back. Fails with
// Exit::usage, named with `where`.
std::vector<BlockShape> parse_shapes(const std::string& text, const std::string& where);
std::string shapes_text(const std::vector<BlockShape>& blocks);

// The width, depth, heads and patch of a name such as "DiT-XL/2".
struct NamedSize {
  int64_t width, depth, heads, patch;
};
NamedSize named_size(const std::string& name, const std::string& where = "--model");

// Fails with Exit::usage on what cannot be a model: zero or absurd sizes, a width that its heads do
// not divide, an image that the patch does not divide.
void validate(const DitConfig& config);

// Fails with Exit::usage where a batch is so large that the bytes of its tensors, all together,
// would be near what 64 bits count. Every sum and product of sizes is safe behind it.
void check_countable(const DitConfig& config, int64_t batch);

enum class Init : uint8_t { zero, one, xavier, normal, positions };

inline constexpr const char* kPositionTable = "pos_embed";
inline constexpr const char* kLabelTable = "y_embedder.embedding_table.weight";

// Where a model says how many of a matrix's weights are left.
struct LeftAt {
  int64_t block = -1;  // -1: of no block
  int matrix = -1;     // of BlockShape, or of DitConfig; -1: of none, the tensor stays whole
};

// Layers, as ledgers and tensors name them.
inline constexpr const char* kEmbedding = "embed";
inline constexpr const char* kFinalLayer = "final";
std::string block_layer(int64_t block);  // "block3"

// Which part of a tensor of the model a rank has: runs of its rows, or of its columns, one behind
// the other.
struct Slice {
  struct Run {
    int64_t first, count;
  };
  Shape whole = {};  // of the model's tensor; empty: the part is all of it
  bool columns = false;
  std::vector<Run> runs = {};

  bool any() const { return !whole.empty(); }
  // body(at, first, count) for elements [first, first + count) of the part, in order, wherever they
  // follow each other in the whole: from its element `at` on.
  template <typename Body>
  void each_run(int64_t first, int64_t count, Body body) const {
    if (!any()) return body(first, first, count);
    const int64_t all = element_count(whole), row = all / whole[0];
    const int64_t unit = columns ? 1 : row, line = columns ? row : all;
    int64_t own = 0;  // of a line
    for (const Run& run : runs) own += run.count * unit;
    for (int64_t next = first; next < first + count;) {
      int64_t within = next % own;
      size_t i = 0;
      for (; within >= runs[i].count * unit; ++i) within -= runs[i].count * unit;
      const int64_t n = std::min(runs[i].count * unit - within, first + count - next);
      body(next / own * line + runs[i].first * unit + within, next, n);
      next += n;
    }
  }
};

// One tensor of the model, under its name in the reference implementation.
struct ParamSpec {
  std::string name;   // "blocks.3.attn.qkv.weight"
  std::string layer;  // "block3"
  Shape shape;
  Init init;
  bool product = false;  // the matrix of a linear layer
  LeftAt left_at = {};
  int64_t left = 0;  // of its elements, where weights were pruned one by one; 0: all
  Slice slice = {};  // of the model's, where ranks have parts of it: the shape is this rank's
  // Ranks have all of it, but of its gradient each makes what its own heads add.
  bool of_all_heads = false;

  bool trained() const { return init != Init::positions; }
  bool prunable() const { return left_at.matrix >= 0; }
  bool sparse() const { return left > 0; }
  bool of_labels() const { return name == kLabelTable; }  // a batch has to do with few rows of it
  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return element_count(shape) / shape[0]; }
  // Of what is stored: of a sparse one what is left, row by row.
  Shape stored() const { return sparse() ? Shape{left} : shape; }
  int64_t count() const { return sparse() ? left : element_count(shape); }
  int64_t whole_count() const { return slice.any() ? element_count(slice.whole) : count(); }
};

// All tensors, in the order in which they are stored. The fixed position table is one of them.
std::vector<ParamSpec> parameters(const DitConfig& config);
int64_t parameter_count(const DitConfig& config);

int64_t& left_of(DitConfig& config, const LeftAt& at);
// Every matrix that can be pruned keeps this share of its weights, at least one.
void set_density(DitConfig& config, double share);
// The share of such weights that the model has; 1: none was pruned.
double density_of(const DitConfig& config);
// Whether every matrix has as many weights left as set_density() says.
bool has_density(const DitConfig& config, double share);

// 3 x 2 x the multiply-adds of one sample's forward pass (attention and adaLN included).
double model_flops_per_sample(const DitConfig& config);

// FNV-1a: a tensor's stream of random numbers depends on its name, not on its place in a list.
uint32_t name_key(const std::string& name);

// Starting values of one tensor, keyed by (seed, name): all of them, or `count` from `first` on, a
// multiple of 4. Of the position table only all.
void initialise(float* values, const ParamSpec& spec, uint64_t seed, const DitConfig& config);
void initialise_part(float* values, int64_t first, int64_t count, const ParamSpec& spec,
                     uint64_t seed, const DitConfig& config);

}  // namespace ebb
