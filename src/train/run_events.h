// What changes a run between two of its steps: its model is pruned, or its gradients are coded
// otherwise from then on. The run saves, gives its memory back, is planned anew and goes on with
// the checkpoint. When that is follows from the step and the options alone.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/peers.h"
#include "state/checkpoint.h"
#include "train/train_options.h"

namespace ebb {

class RunEvents {
 public:
  // All must outlive it. Pruning makes the options those of a smaller model.
  RunEvents(TrainOptions& options, const Source& source, const Machine& machine, Peers* peers);

  // What will happen when, a line each.
  std::vector<std::string> announced() const;
  // Fails with Exit::usage where the model has less to give than pruning would take.
  void check(const PruneProgress& progress) const;

  // Whether there is something to do between so many steps and the next one.
  bool due_after(int64_t steps) const { return prunes_after(steps) || codes_change_after(steps); }
  // Whether pruning has still to happen to this checkpoint.
  bool prunes(const CheckpointInfo& info) const;

  // The plan of the steps that follow so many, if `planned` is of others.
  void plan_for(int64_t steps, std::optional<PlannedRun>& planned) const;
  // Does what is due to a checkpoint, of this step: what is left of a pruned model is written to
  // `to`, which may be the same path. `planned` is gone first, and then of the steps that follow.
  // What has happened, a line each.
  std::vector<std::string> carry_out(int64_t steps, const std::filesystem::path& from,
                                     const std::filesystem::path& to,
                                     std::optional<PlannedRun>& planned);

 private:
  bool prunes_after(int64_t steps) const;
  bool codes_change_after(int64_t steps) const;
  ExchangeCode code_after(int64_t steps) const;
  PlannedRun plan(int64_t steps) const;

  TrainOptions& o_;
  const Source& source_;
  const Machine& machine_;
  Peers* const peers_;  // null: alone
};

}  // namespace ebb
