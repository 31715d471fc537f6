// From one checkpoint to the next: the rows and columns of what survives, streamed.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "prune/structure.h"
#include "prune/weights.h"
#include "state/checkpoint.h"

namespace ebb {

// Every weight of the model is there, and every tensor of the file has the type and the shape that
// such a checkpoint has. Fails with Exit::disk, naming the first that has not.
void check_tensors(const SafetensorsReader& file, const CheckpointInfo& info);

// What is added to tensors of the file, by name.
using Gains = std::map<std::string, std::vector<float>>;

struct Surgery {
  Survivors kept;
  // Moments are zero and no update was made, as in a new run; the average stays.
  bool fresh = false;
  Gains gains = {};         // of biases
  Magnitudes weights = {};  // of matrices that become sparse, or sparser (prune/weights.h)
};

// The model that is left.
DitConfig pruned_config(const DitConfig& config, const Surgery& surgery);

// Writes what survives of the file's weights, moments and average, each cut in the same way, under
// the blocks' new numbers. Step, samples, seed, loss scale and data stay; the settings say the new
// shapes. Reads every byte of the file once, checks every hash, and keeps a few parts of
// kSurgeryPart bytes in memory: a damaged file is Exit::disk and leaves nothing at `out`.
void write_pruned(const std::filesystem::path& out, const SafetensorsReader& file,
                  const CheckpointInfo& info, const Surgery& surgery);
inline constexpr int64_t kSurgeryPart = 4 << 20;

// settings.toml as it is, but for the depth and the shapes. A text without a depth stays.
std::string with_shapes(const std::string& settings, const DitConfig& config);

}  // namespace ebb
