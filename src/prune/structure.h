// What can be removed from a model, and which rows and columns of which tensors go with it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/pruned_json.h"
#include "model/config.h"

namespace ebb {

// Structures within a block. A block itself is the third kind.
//   head: rows of q, k and v with their biases, the same columns of proj. What qk-norm scales and
//     shifts is shared by all heads and stays.
//   mlp: a row of fc1 with its bias, a column of fc2.
// Biases of proj and fc2, adaLN and qk-norm are the block's own.
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
  std::string within;                // its name without "blocks.I."
};
Belonging belonging(const ParamSpec& spec, const DitConfig& config);

// What is left of a block: its number, and those of its heads and MLP units, ascending.
struct Survivor {
  int64_t block;
  std::vector<int64_t> heads, mlp;
  bool operator==(const Survivor&) const = default;

  const std::vector<int64_t>& of(Structure kind) const {
    return kind == Structure::head ? heads : mlp;
  }
  std::vector<int64_t>& of(Structure kind) { return kind == Structure::head ? heads : mlp; }
};
using Survivors = std::vector<Survivor>;  // blocks ascending

Survivors all_of(const DitConfig& config);
DitConfig pruned_config(const DitConfig& config, const Survivors& kept);

// The survivors' numbers in the model that was pruned first. `record`: what the file that `kept`
// counts in says of itself; empty: it is that first model.
PrunedRecord in_first_parent(const Survivors& kept, const PrunedRecord& record);

}  // namespace ebb
