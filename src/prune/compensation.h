// What is removed leaves its mean behind (FLAP, 2312.11983): the output bias of its half gains what
// the removed columns of proj or fc2 make of the mean of their input.
#pragma once

#include <vector>

#include "formats/safetensors.h"
#include "prune/data_scores.h"
#include "prune/surgery.h"

namespace ebb {

// What biases of the file gain: those of the weights, and those of the
// average by its own weights, where the file has one. Of blocks that stay; those that lose nothing
// are not among them. Reads each proj and fc2 that loses columns once, in parts, and checks its
// hash.
Gains compensation(const SafetensorsReader& file, const DitConfig& config, const Survivors& kept,
                   const std::vector<BlockMeans>& means);

}  // namespace ebb
