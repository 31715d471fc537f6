#include "train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "comm/agreement.h"
#include "machine/process.h"
#include "model/optimizer.h"
#include "model/slices.h"
#include "sample/shared_drawing.h"
#include "state/unsent.h"
#include "train/rank_seconds.h"
#include "train/resume.h"

namespace ebb {

TrainingRun::TrainingRun(const TrainOptions& options, const Source& source,
                         const PlannedRun& planned, const Machine& machine, Peers* peers)
    : o_(options),
      source_(source),
      planned_(planned),
      data_(record_of(source.info())),
      session_(options.config, planned, machine,
               options.debug_memory ? Executor::Mode::debug_memory : Executor::Mode::normal),
      scale_(uses_fp16()) {
  if (peers == nullptr) return;
  const RankPlace& place = planned.step.place;
  require(place.ranks() == peers->size() && place.rank == peers->rank(),
          "run: rank {} of {} has the plan of rank {} of {}", peers->rank(), peers->size(),
          place.rank, place.ranks());
  ranks_.emplace(StateRanks{*peers, planned.step, owners_of(options.config, planned.step)});
  session_.step().exchange_with(*peers);
}

void TrainingRun::initialise() {
  session_.initialise(o_.seed);
  freeze(0);
  sound_ = true;
}

CheckpointInfo TrainingRun::load(const SafetensorsReader& file, const Check& check) {
  CheckpointInfo info;
  agree(peers(), [&] {
    info = read_info(file);
    check(info);
    refuse_unsent(file);
    check_galore(file, info, planned_.step);
    ranks_ ? verify_hashes_of(file, state(), o_.config, *ranks_) : verify_hashes(file);
  });
  sound_ = false;
  loader_.reset();
  agree(peers(), [&] {
    load_state(file, state(), o_.config);
    check_finite(state(), file.path().string());
  });
  done_ = info.step;
  updates_ = info.updates;
  agree(peers(), [&] { freeze(info.frozen); });
  average_start_ = info.average_start;
  pruned_ = info.pruned;
  pruning_ = info.pruning;
  scale_ = LossScale(uses_fp16(), info.loss_scale, info.clean_steps);
  skipped_in_a_row_ = 0;
  sound_ = true;
  return info;
}

void TrainingRun::refuse_unsent(const SafetensorsReader& file) const {
  const std::string name = without_place(unsent_in(file), o_.config, planned_.step);
  if (name.empty() || o_.drops_unsent) return;
  fail(
      Exit::disk,
      fmt::format("{}: it holds gradients that its ranks have not sent to each other yet, and this "
                  "run has no place for those of {}",
                  file.path().string(), name),
      "go on over ranks with the --exchange of the run, or give --exchange fp32, which drops them");
}

// 1-bit Adam goes on with the second moments as they are when it begins. `before`: those of a
// checkpoint had stopped at this update; 0: they had not.
void TrainingRun::freeze(int64_t before) {
  const bool freezes = state().sends_momenta();
  frozen_ = !freezes ? 0 : before > 0 ? before : updates_;
  if (freezes && frozen_ == 0) {
    fail(Exit::numbers,
         fmt::format("--exchange onebit: none of the {} steps before it was applied: there are no "
                     "second moments to go on with",
                     done_),
         "give a longer --exchange-warmup");
  }
  if (freezes || before == 0) return;
  const double beta2 = o_.step.beta2;
  thaw_moments(state(), o_.config,
               (1 - std::pow(beta2, static_cast<double>(updates_))) /
                   (1 - std::pow(beta2, static_cast<double>(before))));
}

// Where a run gets its samples from.
void TrainingRun::start_loading() {
  if (!planned_.step_plan().program.find(kLoaderMemory)) return;  // a stage that takes none
  const Loader::Options options = loader_options(o_, source_);
  loader_.emplace(source_, options, done_, session_.host(kLoaderMemory));
  session_.step().take_from(*loader_);
}

// The step takes all its samples before it updates anything.
void TrainingRun::run_step(const Scalars& scalars) {
  if (!loader_) start_loading();
  sound_ = false;  // until the step is done, and known to be
  try {
    session_.step().run(scalars);
  } catch (const Error& e) {
    if (e.code() != Exit::data) throw;
    sound_ = true;
    loader_.reset();  // some of the batch may be taken: another step begins with its first sample
    throw;
  }
}

// Samples that a rank could not read have made the norm what it is, on every rank: nothing was
// updated anywhere.
void TrainingRun::agree_on_samples() {
  try {
    agree(ranks_->peers, session_.step().feed_failure());
  } catch (const SharedError&) {
    sound_ = true;
    loader_.reset();
    throw;
  }
}

StepRecord TrainingRun::step() {
  const auto start = std::chrono::steady_clock::now();
  Scalars scalars = step_scalars(o_, done_, updates_);
  scalars.loss_scale = scale_.factor();
  if (frozen_ > 0) {
    scalars.frozen_bias2 =
        static_cast<float>(1 - std::pow(o_.step.beta2, static_cast<double>(frozen_)));
  }
  run_step(scalars);
  const Executor& step = session_.step();
  const auto loss = step.first(kLoss);
  const auto norm = step.first(kClip);
  const bool finite = std::isfinite(loss) && std::isfinite(norm);
  require(!finite || !step.feed_failure(), "step {}: applied without all of its samples",
          done_ + 1);
  if (!finite && ranks_) agree_on_samples();
  if (!finite) not_finite(loss, norm);
  sound_ = true;
  const double scale = scale_.saved();
  scale_.after_step(finite);
  skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
  updates_ += finite ? 1 : 0;
  if (finite) average_start_ *= scalars.ema_decay;
  if (average_start_ < kNoShare) average_start_ = 0;
  ++done_;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  step_seconds_ = rank_seconds(taken.count(), step.standstill());
  return {done_,         loss,
          scalars.lr,    norm,
          taken.count(), static_cast<double>(o_.step.batch) / taken.count(),
          peak_bytes(),  process_peak_bytes(),
          scale,         !finite};
}

// Layers behind the one whose gradient is not finite were updated before it was known.
bool TrainingRun::updates_early() const {
  return planned_.step.choices.release && !planned_.step.norm_first();
}

// The first tensor whose gradient is not finite, or the loss.
std::string TrainingRun::first_not_finite() const {
  const StepSpec& step = planned_.step;
  const std::vector<ParamSpec> specs = sliced_parameters(o_.config, step.place);
  const std::vector<NormSlot> slots = norm_slots(specs, step.place, step.choices.shard);
  std::vector<double> squares(slots.size());
  session_.step().get<double>(kNorms, squares);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!std::isfinite(squares[i])) return "the gradient of " + specs[slots[i].spec].name;
  }
  return "the loss";
}

// A norm that is not finite has kept the update from being applied. One step can have bad luck,
// and with fp16 the scale is being found; several in a row do not come right by themselves.
void TrainingRun::not_finite(float loss, float norm) {
  last_not_finite_ = first_not_finite();
  const bool hopeless = scale_.used() ? scale_.exhausted() : skipped_in_a_row_ + 1 >= kMostInARow;
  if (!hopeless && !updates_early()) return;
  fail(Exit::numbers,
       fmt::format("step {}: {} is not finite (loss {}, norm {}); {}", done_ + 1, last_not_finite_,
                   loss, norm,
                   updates_early() ? "the update was not applied to it, and nothing was saved"
                                   : fmt::format("the update was not applied, {} times in a row",
                                                 skipped_in_a_row_ + 1)),
       "try a smaller --lr, --clip 1 or --warmup");
}

// Steps at the end that were not applied did nothing. Looking for fp16's scale skips some, and
// so does a scale that has just grown: few of them, between others that are applied.
bool TrainingRun::ended_well() const {
  if (!scale_.used()) return skipped_in_a_row_ == 0;
  return skipped_in_a_row_ < kMostInARow && (updates_ > 0 || done_ == 0);
}

void TrainingRun::save(const std::filesystem::path& path) {
  save_checkpoint(path,
                  {done_, done_ * o_.step.batch, o_.seed, o_.config, source_.info().pixels,
                   o_.settings, optimizers()[static_cast<size_t>(o_.step.optimizer)].name,
                   storage_text(planned_.step.choices.storage), updates_, scale_.saved(),
                   scale_.clean_steps(), data_, average_start_, pruned_, pruning_,
                   planned_.step.choices.storage.galore_rank, frozen_},
                  state(), ranks_ ? &*ranks_ : nullptr);
}

Drawn TrainingRun::draw(int64_t count, const Drawer::LabelOf& label_of, uint64_t seed,
                        const Drawer::Take& take, const Drawer::Stop& stop,
                        const Drawer::Watch& watch) {
  session_.settle();
  Drawer drawer(planned_.plans, *planned_.sampler, o_.config, session_.device(), session_.memory(),
                ranks_ ? &ranks_->peers : nullptr);
  const Drawn drawn =
      ranks_ ? SharedDrawing(drawer, ranks_->peers).draw(count, label_of, seed, take, stop, watch)
             : drawer.draw(count, label_of, seed, take, stop, watch);
  drawn_peak_ = std::max(drawn_peak_, drawer.peak_bytes());
  return drawn;
}

std::vector<std::string> TrainingRun::take_notes() {
  return loader_ ? loader_->take_notes() : std::vector<std::string>();
}

}  // namespace ebb
