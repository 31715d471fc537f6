// What is behind the public SavedModel.
#pragma once

#include <ebb/saved_model.h>

#include <optional>

#include "plan/planned_run.h"
#include "run/run_memory.h"
#include "state/checkpoint.h"

namespace ebb {

struct SavedModel::Impl {
  MeasuredMachine machine;
  int64_t budget_bytes;
  SafetensorsReader file;
  CheckpointInfo info;
  std::optional<PlannedSampling> planned;
  std::optional<RunMemory> memory;  // with the weights; gone before the plan is
};

}  // namespace ebb
