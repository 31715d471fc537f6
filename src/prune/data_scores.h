// How much each structure of a checkpoint matters, by what the model does with data: noised samples
// over all times, with the model's own objective, and its raw weights, which training goes on with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/source.h"
#include "plan/machine.h"
#include "prune/scores.h"
#include "state/checkpoint.h"

namespace ebb {

struct DataScoring {
  int64_t samples = 256;     // taken kScoringBatch at a time: more are rounded up to whole batches
  uint64_t seed = 0;         // of which samples, their noise, times and dropped labels
  float label_drop = 0.1f;   // as in training
  int64_t budget_bytes = 0;  // of the process
  int loader_threads = 1;
};
inline constexpr int64_t kScoringBatch = 32;

// The mean over tokens and samples of what goes into a block's proj and fc2, by column.
struct BlockMeans {
  std::vector<double> attention, mlp;
  const std::vector<double>& of(Structure kind) const {
    return kind == Structure::head ? attention : mlp;
  }
};

struct DataScores {
  Scores scores;
  std::vector<BlockMeans> means;   // of activation and fluctuation; otherwise none
  int64_t samples = 0;             // that were looked at
  int64_t arena_bytes = 0;         // that were planned for it, and taken
  std::vector<std::string> notes;  // why samples were left out
};

// taylor: |the sum of w dL/dw| over what a structure is multiplied with last - a head's columns of
//   proj, an MLP unit's column of fc2 - which is what the loss changes by, to first order, when it
//   goes (Molchanov et al. 2017). The mean over batches. A block: the same over all of proj and fc2
//   with their biases, which is shutting both its gates. Compared as they are.
// activation: of an MLP unit, the root of the sum over samples of the square of its mean of |g|
//   over tokens (Minitron); of a head, that of its columns together. A block: of all its columns.
// fluctuation: the variance of a column's input times the column's squared norm (FLAP); of a head
//   or a block, the sum. What goes leaves its mean behind: see compensation.h.
// The last two look at the inside of a half, not at its gate: compared within one block and kind.
//
// Planned, and run within the budget: taylor as a step without its update, by any exact technique,
// the others as a forward pass in micro-batches. The scores depend on neither. Fails with
// Exit::budget where it cannot hold, with Exit::data where the data is not what the model was made
// for, and with Exit::numbers where weights or the loss are not finite. `machine` was measured
// before the data was opened; nothing is kept of either.
DataScores data_scores(const SafetensorsReader& file, const CheckpointInfo& info, ScoreBy by,
                       const Source& source, const DataScoring& options, const Machine& machine);

}  // namespace ebb
