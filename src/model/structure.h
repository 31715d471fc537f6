// What a model is made of besides tensors: heads, MLP units, blocks, and which rows and columns of
// which tensors belong to each.
#pragma once

#include <optional>
#include <string>

#include "model/config.h"

namespace ebb {

// Structures within a block. A block itself is the third kind.
//   head: rows of q, k and v with their biases, the same columns of proj. What qk-norm scales and
//     shifts is shared by all heads and stays.
//   mlp: a row of fc1 with its bias, a column of fc2.
// Biases of proj and fc2, qk-norm and the half's three chunks of adaLN stay as long as there is one
// of the kind in the block. With the last of them they go too: half a block is left.
enum class Structure : uint8_t { head, mlp };
inline constexpr Structure kStructures[] = {Structure::head, Structure::mlp};
const char* structure_name(Structure kind);  // "heads", "mlp"

// How many of a kind a block has.
int64_t structure_count(const BlockShape& shape, Structure kind);
// The parameters that go with one of them.
int64_t structure_params(const DitConfig& config, Structure kind);

// How a tensor is made of structures: along one axis, index i is of number (i / width) % count.
struct Membership {
  Structure kind;
  bool columns;   // the axis: columns, or else rows
  int64_t width;  // of one structure: a head's, or 1
};

// A parameter's place in its model.
struct Belonging {
  std::optional<int64_t> block;      // none: of no block
  std::optional<Membership> member;  // none: of no structure within the block
  std::optional<Structure> half;     // of the attention, or of the MLP: goes with the last of them
  std::string within;                // its name without "blocks.I."

  bool modulation() const;  // adaLN's of a block: 3D rows for each half that it has
};
Belonging belonging(const ParamSpec& spec, const DitConfig& config);
bool in_structure(const ParamSpec& spec);

}  // namespace ebb
