// What is behind the public SavedModel.
#pragma once

#include <ebb/saved_model.h>

#include <optional>

#include "comm/peers.h"
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

// Collective: as SavedModel::draw(), with the model that every rank has loaded by itself; the calls
// are as SharedDrawing::draw has them.
bool draw_shared(SavedModel& model, int64_t count, uint64_t seed, const DrawingCalls& calls,
                 Peers& peers);

}  // namespace ebb
