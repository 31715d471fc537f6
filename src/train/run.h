// What a training run is, whoever drives it: its memory and state, its counters, one step at a
// time. Folders, loops and what people are told are the trainer's.
#pragma once

#include <ebb/step_record.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/peers.h"
#include "data/loader.h"
#include "sample/draw.h"
#include "state/checkpoint.h"
#include "train/loss_scale.h"
#include "train/session.h"
#include "train/train_options.h"

namespace ebb {

// Not for several threads at a time; several runs may live side by side.
class TrainingRun {
 public:
  // Steps whose gradient is not finite that do not come right by themselves.
  static constexpr int kMostInARow = 4;

  // Takes the memory of the plan. All must outlive it. A state is yet to come. With `peers` it is
  // one rank's part of a run over all of them, and the plan that of this rank: then load(), step(),
  // save() and draw() are collective.
  TrainingRun(const TrainOptions& options, const Source& source, const PlannedRun& planned,
              const Machine& machine, Peers* peers = nullptr);

  // Random weights by the seed.
  void initialise();

  // Goes on from a checkpoint. check(info) fails where it is not one of this run; it is asked
  // before the state is touched. Fails as the readers do, on all ranks alike; when it fails after
  // that, the run is not sound.
  using Check = std::function<void(const CheckpointInfo& info)>;
  CheckpointInfo load(const SafetensorsReader& file, const Check& check);

  // Begins to load the batches of the next steps; step() does so by itself.
  void start_loading();

  // One optimizer step. Fails as the data does, with nothing done, on all ranks alike; with
  // Exit::numbers when the loss or the gradient stays not finite: then the run is not sound.
  StepRecord step();

  // Where the last step's time has gone, of a run over several ranks.
  const RankSeconds& step_seconds() const { return step_seconds_; }

  // Writes weights, moments, average and counters, atomically.
  void save(const std::filesystem::path& path);

  // As Drawer::draw, with what was planned for it; over ranks as SharedDrawing::draw.
  Drawn draw(int64_t count, const Drawer::LabelOf& label_of, uint64_t seed,
             const Drawer::Take& take, const Drawer::Stop& stop, const Drawer::Watch& watch);

  // Why samples of the batches so far were left out; each line once.
  std::vector<std::string> take_notes();

  int64_t done() const { return done_; }        // optimizer steps,
  int64_t updates() const { return updates_; }  // and those of them that were applied
  bool sound() const { return sound_; }         // the state is that after done() steps
  // Few enough steps at the end were not applied.
  bool ended_well() const;
  int skipped_in_a_row() const { return skipped_in_a_row_; }
  const std::string& last_not_finite() const { return last_not_finite_; }  // of a skipped step
  const LossScale& loss_scale() const { return scale_; }
  int64_t peak_bytes() const { return std::max(session_.step().peak_bytes(), drawn_peak_); }
  const DataRecord& data() const { return data_; }
  State& state() { return session_.settled(); }
  const PlannedRun& planned() const { return planned_; }

 private:
  void refuse_unsent(const SafetensorsReader& file) const;
  void freeze(int64_t before);
  bool uses_fp16() const { return planned_.step.choices.storage.activation == DType::f16; }
  bool updates_early() const;
  Peers* peers() const { return ranks_ ? &ranks_->peers : nullptr; }
  void run_step(const Scalars& scalars);
  void agree_on_samples();
  std::string first_not_finite() const;
  void not_finite(float loss, float norm);

  const TrainOptions& o_;
  const Source& source_;
  const PlannedRun& planned_;
  const DataRecord data_;
  Session session_;
  std::optional<StateRanks> ranks_;  // none: alone
  LossScale scale_;
  RankSeconds step_seconds_;
  int64_t drawn_peak_ = 0;  // of the arena, while drawing
  int64_t done_ = 0, updates_ = 0;
  int64_t frozen_ = 0;  // updates that second moments have seen, where they stay as they are
  int skipped_in_a_row_ = 0;
  std::string last_not_finite_;
  double average_start_ = 1;  // the share of the starting weights in the average
  std::string pruned_;        // what a checkpoint said of its pruning, which later ones say too,
  PruneProgress pruning_;     // and of that while it was trained
  bool sound_ = false;
  std::optional<Loader> loader_;  // last: its threads write into the session's memory
};

}  // namespace ebb
