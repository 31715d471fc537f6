// What is left of a model when structures are removed from it.
#pragma once

#include <vector>

#include "formats/pruned_json.h"
#include "model/structure.h"

namespace ebb {

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
