// The model as ranks have it that share its blocks: each some of the heads and some columns of the
// MLP of every block, and some rows of its modulation. The rest all of them have whole.
#pragma once

#include <vector>

#include "model/ranks.h"

namespace ebb {

// Blocks with this rank's heads and columns alone. The width, and the modulation, are the model's.
DitConfig sliced(const DitConfig& whole, const RankPlace& place);

// parameters() as this rank has them, those of other stages too: in the same order, under the same
// names, each with its part of the model's tensor.
std::vector<ParamSpec> sliced_parameters(const DitConfig& whole, const RankPlace& place);

// Why a model cannot be cut into so many parts; empty: it can.
std::string cannot_slice(const DitConfig& whole, int parts);

}  // namespace ebb
