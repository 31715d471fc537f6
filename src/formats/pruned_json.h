// The metadata key `ebb.pruned`: which structures of the model that was first pruned are left, as a
// JSON object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/config.h"

namespace ebb {

inline constexpr const char* kPrunedKey = "ebb.pruned";

// Numbers, ascending, as they follow each other: "0-3,5" are two ranges. However large the numbers,
// they take no more than the text that says them.
struct IndexRange {
  int64_t first, last;
  bool operator==(const IndexRange&) const = default;
};
using IndexRanges = std::vector<IndexRange>;

int64_t index_count(const IndexRanges& ranges);
IndexRanges ranges_of(const std::vector<int64_t>& ascending);
std::vector<int64_t> indices_of(const IndexRanges& ranges);
std::string ranges_text(const IndexRanges& ranges);

// A block of the pruned model: its number in the first parent, and those of its heads and MLP units
// in that block.
struct PrunedBlock {
  int64_t block;
  IndexRanges heads, mlp;
  bool operator==(const PrunedBlock&) const = default;
};
using PrunedRecord = std::vector<PrunedBlock>;

std::string pruned_to_json(const PrunedRecord& record);
// The most that the record takes of what is left of this model, with numbers below 100,000; of a
// model that has this shape after it was pruned it is twice that.
int64_t most_pruned_bytes(const DitConfig& config);

// Fails with `code` on anything that is not a record of a model of this shape; `where` names the
// file.
PrunedRecord pruned_from_json(const std::string& text, const DitConfig& config,
                              const std::string& where, Exit code);

}  // namespace ebb
