// What a training run is to do, and what follows from that alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/source.h"
#include "model/step.h"
#include "plan/planned_run.h"
#include "sample/output.h"
#include "state/average.h"
#include "train/outlook.h"
#include "train/prune_schedule.h"

namespace ebb {

struct TrainOptions {
  std::filesystem::path out;
  DitConfig config;
  StepSpec step;
  int64_t steps = 0;
  double lr = 1e-4;
  int64_t warmup = 0;  // steps over which lr grows linearly from 0
  AverageRule average;
  uint64_t seed = 0;
  int64_t save_every = 1000, sample_every = 0, log_every = 100;  // steps; 0: never, nor at the end
  int64_t keep = 3;                                              // newest checkpoints kept; 0: all
  bool flip = false;
  int loader_threads = 1;
  bool debug_memory = false;
  int64_t budget_bytes = 0;
  bool resume = false;
  std::optional<int64_t> resume_step;    // of the checkpoint to resume from; otherwise the newest
  std::filesystem::path from;            // the checkpoint that a new run begins with; empty: none
  bool accept_changed_data = false;      // go on with data that is not what the checkpoint's was
  bool drops_unsent = false;             // what ranks have not sent, if this run has no use for it
  int64_t pruned_bytes = 0;              // at most, of what checkpoints say of their pruning
  std::optional<PruneSchedule> pruning;  // while training
  std::string settings;                  // TOML, written beside the checkpoints and into them
  std::string name;                      // of the model, for messages
  Decisions decisions;                   // techniques that the user has decided on
  std::optional<SamplerSpec> sampler;    // of what the run draws; absent: nothing
  std::vector<int32_t> sample_classes;   // of the pictures every sample_every steps
  int64_t samples_each = 0;              // of each class
  std::string fewer_pictures;            // why they are not what they are by default; "": they are
  Outlook outlook;                       // what the run says of itself when it starts
};

Loader::Options loader_options(const TrainOptions& options, const Source& source);

// Where the pictures after a step go.
OutputSpec sample_output(const TrainOptions& options, const Source& source, int64_t step);

// What a training run needs planned. Without a source, the loader's memory is left out.
RunSpec run_spec(const TrainOptions& options, const Source* source);

// lr, Adam's bias corrections and EMA decay of step k (0-based), before which `updates` steps were
// applied.
Scalars step_scalars(const TrainOptions& options, int64_t k, int64_t updates);

}  // namespace ebb
