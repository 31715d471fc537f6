// A forward-only program that measures what heads and MLP units give to their blocks.
#pragma once

#include <string>

#include "model/step.h"

namespace ebb {

inline constexpr const char* kScoringProgram = "scoring";

// What ColumnSums adds up of what goes into a block's attn.proj and mlp.fc2, (3, columns) f64.
// Resident: a run adds to what those before it left. Absent of a half that the block does not have.
std::string attention_sums(int64_t block);  // columns: its heads, one behind the other
std::string mlp_sums(int64_t block);        // columns: its MLP units

// The samples of a training step, noised and labelled as there, through all blocks. Of the choices
// only the micro-batch counts: no bit depends on it. All is fp32.
Program write_scoring(const DitConfig& config, const StepSpec& spec, const Device& device);

}  // namespace ebb
