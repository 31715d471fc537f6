// How much each structure of a checkpoint matters, by its own tensors. Scores from data
// (data_scores.h) come in through the same struct.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "prune/structure.h"
#include "state/checkpoint.h"

namespace ebb {

struct BlockScores {
  std::vector<double> heads, mlp;  // one for each
  double block = 0;                // of the whole block, with what belongs to no structure in it

  const std::vector<double>& of(Structure kind) const {
    return kind == Structure::head ? heads : mlp;
  }
};

struct Scores {
  std::vector<BlockScores> blocks;
  // They say what a structure is worth wherever it stands, each parameter of it counting alike:
  // then blocks and kinds are compared as they are. Otherwise each block and kind is measured by
  // its own mean.
  bool comparable = false;
};

// l1, l2: the norm of all of a structure's weights. They know nothing of adaLN's scale and gate,
//   and so compare only structures of one block and kind.
// fisher: the sum of w^2 v with the optimizer's second moments, which are means of squared
//   gradients: about twice what the loss would lose (2507.18807). The bias correction of v is one
//   factor for all and left out.
// taylor, activation, fluctuation: from data, see data_scores.h.
// random: the control. By seed and by the numbers of the first parent, so that a model that was
//   pruned before gets the same ones.
enum class ScoreBy : uint8_t { l1, l2, taylor, fisher, activation, fluctuation, random };
inline constexpr const char* kScoreWords =
    "l1|l2|taylor|fisher|activation|fluctuation|random";  // in that order
ScoreBy parse_score(const std::string& word);
const char* score_name(ScoreBy by);
bool needs_data(ScoreBy by);

// What is looked at: the rest of the scores stays 0, and its tensors are not read.
struct Scored {
  bool heads = false, mlp = false, blocks = false;
  bool of(Structure kind) const { return kind == Structure::head ? heads : mlp; }
};

// Reads each tensor that is needed once, in parts, and checks its hash. The file's tensors have the
// shapes of `config`. Fails with Exit::numbers on a weight that is not finite, and with Exit::disk
// where fisher finds no second moments, or none that an update has made.
// Not for scores that need data, nor for random ones.
Scores checkpoint_scores(const SafetensorsReader& file, const DitConfig& config, ScoreBy by,
                         const Scored& wanted);
Scores random_scores(const DitConfig& config, const PrunedRecord& record, uint64_t seed);

// The one or the other.
Scores scores_of(const SafetensorsReader& file, const CheckpointInfo& info, ScoreBy by,
                 const Scored& wanted, uint64_t seed);

}  // namespace ebb
