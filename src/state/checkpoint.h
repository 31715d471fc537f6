// Checkpoints: one safetensors file with weights, EMA and moments under their buffers' names, and
// what resuming needs in the metadata. Written atomically, with a hash of every tensor.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/pieces.h"
#include "formats/data_json.h"
#include "formats/safetensors.h"
#include "model/config.h"
#include "state/state.h"
#include "state/state_ranks.h"

namespace ebb {

// How far pruning while training has come.
struct PruneProgress {
  int64_t step = 0;               // after which it last happened; 0: it has not yet
  std::vector<BlockShape> begun;  // the blocks as they were before it first did

  bool operator==(const PruneProgress&) const = default;
};

struct CheckpointInfo {
  int64_t step = 0;     // optimizer steps done
  int64_t samples = 0;  // samples seen: the position in the data's order
  uint64_t seed = 0;
  DitConfig config;
  bool pixels = false;       // what the model draws are pictures, not latents
  std::string settings;      // TOML, as in settings.toml
  std::string optimizer;     // whose state it is
  std::string storage;       // how the run stored its numbers, in words; the file's are fp32
  int64_t updates = 0;       // of those steps, the ones whose gradient was finite
  double loss_scale = 0;     // fp16: of the next step; 0: none
  int64_t clean_steps = 0;   // fp16: since the scale last changed
  DataRecord data;           // what it was trained on; empty: an older version did not say
  double average_start = 0;  // the share of the starting weights in the average
  std::string pruned;        // what is left of the model that was pruned (formats/pruned_json.h)
  PruneProgress pruning;     // by the run itself
  int64_t galore_rank = 0;   // of the moments of matrices; 0: they are of the matrices' own shape
  int64_t frozen = 0;        // updates that the second moments of matrices have seen; 0: all
};

// Where a run keeps the checkpoint of a step.
std::filesystem::path checkpoint_path(const std::filesystem::path& run, int64_t step);

// Those of a run, by step. Only names that checkpoint_path() gives count.
struct StoredCheckpoint {
  int64_t step;
  std::filesystem::path path;
};
std::vector<StoredCheckpoint> checkpoints_of(const std::filesystem::path& run);
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run);

// Writes weights, EMA and moments, as fp32 whatever they are stored as: one file, with the same
// bytes for any number of ranks. Over ranks it is collective: rank 0 writes, and the others supply
// what they own. Where it fails on one, nothing is left and every rank throws the same; if a rank
// is lost meanwhile, that is Exit::peer. A rank takes kSavingBytes of heap for pieces of tensors,
// and rank 0 one piece more, or a row, where ranks have columns of one.
inline constexpr int64_t kSavingBytes = kPiecesBytes;
void save_checkpoint(const std::filesystem::path& path, const CheckpointInfo& info,
                     const State& state, const StateRanks* ranks = nullptr);

// The same of a checkpoint's metadata, for who writes its tensors in another way.
std::map<std::string, std::string> checkpoint_metadata(const CheckpointInfo& info);

// Removes all but the `keep` newest checkpoints of a run. 0 keeps all.
void prune_checkpoints(const std::filesystem::path& run, int64_t keep);

// What a checkpoint says of itself: every number within its bounds, and as it was written if the
// file carries a hash of it. Fails with Exit::disk on a foreign or damaged file.
CheckpointInfo read_info(const SafetensorsReader& file);

// What the names, shapes and hashes of a model's state take while a checkpoint is written or read,
// beyond those of ordinary models, which the reserve of every process holds. `projects`: moments
// may come to be in a small space.
int64_t checkpoint_heap_bytes(const DitConfig& config, const StepSpec& step, bool projects);

// Fills every weight, EMA and moment of the state from the file; a tensor that is missing, or has
// another shape, is Exit::disk, and so is one that no model of this kind has. The position table is
// made when the file has none.
void load_state(const SafetensorsReader& file, State& state, const DitConfig& config);

// The same check as verify_hashes(), by a rank: of what it has, and by rank 0 of what no rank of
// the step has use for. Together they look at every tensor of the file.
void verify_hashes_of(const SafetensorsReader& file, const State& state, const DitConfig& config,
                      const StateRanks& ranks);

// Fails with Exit::numbers naming the first weight or average that is not finite. A weight of which
// only a half is here is its owner's to check.
void check_finite(const State& state, const std::string& where);

}  // namespace ebb
