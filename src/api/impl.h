// What the public classes hold. The verbs live in the same house and may look inside.
#pragma once

#include <ebb/data.h>
#include <ebb/machine.h>
#include <ebb/plan.h>

#include <memory>
#include <optional>

#include "data/source.h"
#include "plan/planned_run.h"
#include "train/train_options.h"

namespace ebb {

struct MeasuredMachine::Impl {
  Machine machine;
};

struct Data::Impl {
  std::unique_ptr<const Source> source;
};

struct TrainingPlan::Impl {
  MeasuredMachine machine;
  std::optional<Data> data;
  TrainOptions options;
  RunSpec spec;
  PlannedRun planned;
  std::optional<Outlook> outlook;  // of a run with a folder, which is known to its end
};

inline const Machine& inside(const MeasuredMachine& machine) { return machine.impl().machine; }
inline const Source& inside(const Data& data) { return *data.impl().source; }

// The parts of a plan refer to each other: all live as long as the plan does.
inline const TrainingPlan::Impl& inside(const TrainingPlan& plan) { return plan.impl(); }

}  // namespace ebb
