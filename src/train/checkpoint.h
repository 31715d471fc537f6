// Checkpoints: one safetensors file with weights, EMA and moments under their buffers' names, and
// what resuming needs in the metadata. Written atomically, with a hash of every tensor.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "model/config.h"
#include "plan/plan.h"

namespace ebb {

struct CheckpointInfo {
  int64_t step = 0;     // optimizer steps done
  int64_t samples = 0;  // samples seen: the position in the data's order
  uint64_t seed = 0;
  DitConfig config;
  bool pixels = false;   // what the model draws are pictures, not latents
  std::string settings;  // TOML, as in settings.toml
};

// Where a run keeps the checkpoint of a step, and the newest one there.
std::filesystem::path checkpoint_path(const std::filesystem::path& run, int64_t step);
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run);

// Writes the weights, EMA and moments that `plan` keeps in the arena.
void save_checkpoint(const std::filesystem::path& path, const CheckpointInfo& info,
                     const Plan& plan, const std::byte* arena);

// Removes all but the `keep` newest checkpoints of a run. 0 keeps all.
void prune_checkpoints(const std::filesystem::path& run, int64_t keep);

// What a checkpoint says of itself. Fails with Exit::disk on a foreign file.
CheckpointInfo read_info(const SafetensorsReader& file);

// Fills every weight, EMA and moment of `plan` from the file; a tensor that is missing, or has
// another shape, is Exit::disk. The position table is made when the file has none.
void load_state(const SafetensorsReader& file, const Plan& plan, std::byte* arena,
                const DitConfig& config);

// The model of a weights file: from `ebb.model`, or from the shapes of reference-named tensors
// where they tell it. What neither tells keeps its value in `given`.
DitConfig model_of(const SafetensorsReader& file, const DitConfig& given, bool heads_given);

}  // namespace ebb
