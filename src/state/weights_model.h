// Which model a weights file holds.
#pragma once

#include "formats/safetensors.h"
#include "model/config.h"

namespace ebb {

// What tensors cannot tell. The file's metadata, where there is any, says it instead.
struct BesideTensors {
  int64_t heads = 0;       // 0: not said; then qk-norm's tensors tell, or a named size
  int64_t image_size = 0;  // of a file without a position table
  Objective objective = Objective::ddpm;
};

// The model that `ebb.model` in the file's metadata describes, or else the shapes of tensors under
// the reference's names. Fails with Exit::disk where neither describes one.
DitConfig model_of(const SafetensorsReader& file, const BesideTensors& said);

// Fails with Exit::disk, naming it, on a tensor that a model of this kind has no use for. Weights,
// and averages and moments of them, are of use, whether or not a verb reads them.
void refuse_unknown_tensors(const SafetensorsReader& file, const DitConfig& config);

}  // namespace ebb
