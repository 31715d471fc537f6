// A training run with a folder of its own: plan, take the memory, loop, save.
#pragma once

#include <vector>

#include "comm/peers.h"
#include "train/sink.h"
#include "train/train_options.h"

namespace ebb {

struct Trained {
  int64_t steps = 0;     // done in all
  bool stopped = false;  // because it was asked to; the state is saved
};

// Runs what was planned, from the beginning or from a checkpoint, until options.steps or until it
// is asked to stop. Fails with Exit::usage when the folder holds a run that is not to be resumed,
// Exit::disk when one cannot be resumed or written, Exit::data when the data is gone or not the
// run's, and Exit::numbers when the loss or the gradient stays not finite; the steps done are saved
// first where they are sound.
//
// Over ranks (`peers`) every one of them calls it, with the plan of its place. Rank 0 has the
// folder; the others read the checkpoint that it resumes from. A request to stop any of them stops
// all after the same step, saved. What all fail with alike is a SharedError; a rank that fails by
// itself is lost to the others, who fail with Exit::peer and name the last checkpoint.
Trained train(const TrainOptions& options, const Source& source, PlannedRun planned,
              const Machine& machine, const std::vector<RunSink*>& sinks = {},
              const RunControl& control = {}, Peers* peers = nullptr);

}  // namespace ebb
