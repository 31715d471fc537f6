#include "prune/structure.h"

#include <numeric>

namespace ebb {

Survivors all_of(const DitConfig& config) {
  Survivors all;
  for (int64_t i = 0; i < config.depth(); ++i) {
    Survivor block{i, {}, {}};
    for (const Structure kind : kStructures) {
      block.of(kind).resize(static_cast<size_t>(structure_count(config.blocks[i], kind)));
      std::iota(block.of(kind).begin(), block.of(kind).end(), int64_t{0});
    }
    all.push_back(std::move(block));
  }
  return all;
}

DitConfig pruned_config(const DitConfig& config, const Survivors& kept) {
  DitConfig pruned = config;
  pruned.blocks.clear();
  for (const Survivor& block : kept) {
    pruned.blocks.push_back({std::ssize(block.heads), std::ssize(block.mlp)});
  }
  return pruned;
}

PrunedRecord in_first_parent(const Survivors& kept, const PrunedRecord& record) {
  PrunedRecord made;
  for (const Survivor& block : kept) {
    if (record.empty()) {
      made.push_back({block.block, ranges_of(block.heads), ranges_of(block.mlp)});
      continue;
    }
    const PrunedBlock& before = record.at(static_cast<size_t>(block.block));
    const auto composed = [](const std::vector<int64_t>& chosen, const IndexRanges& from) {
      const std::vector<int64_t> numbers = indices_of(from);
      std::vector<int64_t> originals;
      for (const int64_t i : chosen) originals.push_back(numbers.at(static_cast<size_t>(i)));
      return ranges_of(originals);
    };
    made.push_back(
        {before.block, composed(block.heads, before.heads), composed(block.mlp, before.mlp)});
  }
  return made;
}

}  // namespace ebb
