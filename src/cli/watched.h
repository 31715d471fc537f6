// A training run as a person watches it: what it says goes to the terminal, and signals stop it.
#pragma once

#include "data/source.h"
#include "train/trainer.h"

namespace ebb {

// The exit code of the program: 0, or 128 + the signal that stopped it, with the state saved. Of
// several ranks the first speaks, and a signal to any stops all.
int train_watched(const TrainOptions& options, const Source& source, PlannedRun planned,
                  const Machine& machine, Peers* peers);

}  // namespace ebb
