#include "train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "data/loader.h"
#include "machine/budget.h"
#include "machine/process.h"
#include "sample/draw.h"
#include "sample/output.h"
#include "state/checkpoint.h"
#include "train/json_log.h"
#include "train/loss_scale.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/session.h"

namespace ebb {

namespace {

// Steps whose gradient is not finite that do not come right by themselves.
constexpr int kMostInARow = 4;

class Trainer {
 public:
  Trainer(const TrainOptions& options, const Source& source, const PlannedRun& planned,
          const Machine& machine, RunFolder& folder, std::vector<RunSink*> sinks,
          const RunControl& control)
      : o_(options),
        source_(source),
        planned_(planned),
        folder_(folder),
        sinks_(std::move(sinks)),
        control_(control),
        session_(options.config, planned, machine,
                 o_.debug_memory ? Executor::Mode::debug_memory : Executor::Mode::normal),
        step_(session_.step()),
        state_(session_.state()),
        scale_(uses_fp16()) {}

  Trained run() {
    start_state();
    for (std::string& note : folder_.open(o_.settings, o_.sample_every > 0)) {
      notes_.push_back(std::move(note));
    }
    say_started();
    Loader loader(source_, loader_options(o_, source_), done_, session_.host(kLoaderMemory));
    step_.take_from(loader);
    JsonLog log(o_.out / "log.jsonl", done_);
    sinks_.insert(sinks_.begin(), &log);
    try {
      while (done_ < o_.steps && !control_.stop()) {
        const StepRecord record = one_step();
        for (const std::string& line : loader.take_notes()) note("left out: " + line);
        for (RunSink* sink : sinks_) sink->step(record);
        if (record.skipped) note_skipped(record);
        if (due(o_.save_every)) save();
        if (due(o_.sample_every) && !control_.stop()) draw_samples();
      }
      return finish();
    } catch (const Error& e) {
      if (e.code() == Exit::numbers) throw;  // what led there is not worth keeping
      fail(e.code(), e.what() + save_before_failing(), e.hint());
    } catch (...) {  // of a sink: nobody reads what it says any more, perhaps
      save_before_failing();
      throw;
    }
  }

 private:
  Trained finish() {
    if (control_.stop()) {  // perhaps while the last pictures were drawn
      if (saved_ != done_) save();
      return {done_, true};
    }
    if (!ended_well()) {
      fail(Exit::numbers,
           fmt::format("the last {} steps were not applied: {} was not finite{}", skipped_in_a_row_,
                       last_not_finite_, saved_ == done_ ? saved_text() : ""),
           "try a smaller --lr, --clip 1 or --warmup");
    }
    return {done_, false};
  }

  void note(const std::string& line) {
    for (RunSink* sink : sinks_) sink->note(line);
  }

  // Steps at the end that were not applied did nothing. Looking for fp16's scale skips some, and
  // so does a scale that has just grown: few of them, between others that are applied.
  bool ended_well() const {
    if (!scale_.used()) return skipped_in_a_row_ == 0;
    return skipped_in_a_row_ < kMostInARow && (updates_ > 0 || done_ == 0);
  }

  std::string saved_text() const {
    return fmt::format("; the state after step {} is saved in {}", saved_,
                       checkpoint_path(o_.out, saved_).string());
  }

  // The surroundings have failed - data, disk, terminal - and the steps that are done are sound.
  // For the error's line: where they are, or why they are not.
  std::string save_before_failing() {
    if (!sound_ || done_ == 0) return "";
    try {
      if (saved_ != done_ && save_tried_ != done_) save();
    } catch (const Error& e) {
      return fmt::format("; and the state after step {} cannot be saved: {}", done_, e.what());
    }
    return saved_ == done_ ? saved_text() : "";
  }

  // Random weights, or those of a checkpoint.
  void start_state() {
    if (folder_.checkpoint()) return resume();
    session_.initialise(o_.seed);
  }

  void resume() {
    const auto path = folder_.checkpoint()->path;
    const CheckpointInfo info = read_whole(path);
    done_ = saved_ = info.step;
    updates_ = info.updates;
    average_start_ = info.average_start;
    scale_ = LossScale(uses_fp16(), info.loss_scale, info.clean_steps);
    unused_scale_ = scale_.used() ? 0 : info.loss_scale;
    converted_from_ = info.storage;
    pruned_ = info.pruned;
  }

  // A file that cannot be used stays where it is; the error names the one before it, if any.
  CheckpointInfo read_whole(const std::filesystem::path& path) {
    bool fits = true;
    try {
      const SafetensorsReader file(path, Exit::disk, header_limit(o_.budget_bytes));
      CheckpointInfo info = read_info(file);
      fits = false;
      check_run(file, info);
      check_data(file, info);
      fits = true;
      verify_hashes(file);
      load_state(file, state_, o_.config);
      check_finite(state_, path.string());
      return info;
    } catch (const Error& e) {
      const auto earlier = folder_.earlier();
      if (!fits || !earlier) throw;
      fail(e.code(), e.what(),
           fmt::format("--resume-step {} goes on from the checkpoint before it, {}; this one is "
                       "kept under another name",
                       earlier->step, earlier->path.filename().string()));
    }
  }

  void check_run(const SafetensorsReader& file, const CheckpointInfo& info) const {
    if (info.step != folder_.checkpoint()->step) {
      fail(Exit::disk,
           fmt::format("{}: found the state after step {} under this name", file.path().string(),
                       info.step),
           fmt::format("it belongs under {}",
                       checkpoint_path(o_.out, info.step).filename().string()));
    }
    const auto found = run_differences(info, o_);
    if (found.empty()) return;
    fail(Exit::disk,
         fmt::format("{}: its run has {}", file.path().string(), fmt::join(found, "; ")),
         "resume with the run's own settings.toml and without those flags, or start another --out");
  }

  void check_data(const SafetensorsReader& file, const CheckpointInfo& info) {
    const auto found = data_differences(info.data, data_);
    if (found.empty()) return;
    const std::string what = fmt::format("{}", fmt::join(found, "; "));
    if (!o_.accept_changed_data) {
      fail(Exit::data,
           fmt::format("{}: the data is not what this run was trained on: {}", file.path().string(),
                       what),
           "bring it back, start another --out, or go on with it as it is now: --data-changed "
           "accept");
    }
    notes_.push_back(fmt::format("data: accepted as changed: {}", what));
    if (info.data.names == data_.names) return;
    notes_.emplace_back(
        "data: a label is a place among the sorted names: the model relearns those that moved");
  }

  bool uses_fp16() const { return planned_.step.choices.storage.activation == DType::f16; }

  void say_started() {
    RunStarted start{o_, source_.info(), planned_, done_, notes_, {}};
    const std::string storage = storage_text(planned_.step.choices.storage);
    if (!converted_from_.empty() && converted_from_ != storage) {
      start.converted.push_back(
          fmt::format("converted: the checkpoint's run stored {}, this one stores {}",
                      printable(converted_from_), storage));
    }
    if (unused_scale_ != 0) {
      start.converted.push_back(fmt::format(
          "the checkpoint's loss scale of {} is for fp16 only: left out", unused_scale_));
    }
    for (RunSink* sink : sinks_) sink->started(start);
  }

  // The step takes all its samples before it updates anything.
  void run_step(const Scalars& scalars) {
    sound_ = false;  // until the step is done, and known to be
    try {
      step_.run(scalars);
    } catch (const Error& e) {
      sound_ = e.code() == Exit::data;
      throw;
    }
  }

  StepRecord one_step() {
    const auto start = std::chrono::steady_clock::now();
    Scalars scalars = step_scalars(o_, done_, updates_);
    scalars.loss_scale = scale_.factor();
    run_step(scalars);
    const auto loss = step_.first(kLoss);
    const auto norm = step_.first(kClip);
    const bool finite = std::isfinite(loss) && std::isfinite(norm);
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
    return {done_,
            loss,
            scalars.lr,
            norm,
            taken.count(),
            static_cast<double>(o_.step.batch) / taken.count(),
            std::max(step_.peak_bytes(), drawn_peak_),
            process_peak_bytes(),
            scale,
            !finite};
  }

  // Layers behind the one whose gradient is not finite were updated before it was known.
  bool updates_early() const {
    return planned_.step.choices.release && !planned_.step.norm_first();
  }

  // The first tensor whose gradient is not finite, or the loss.
  std::string first_not_finite() const {
    std::vector<std::string> trained;
    for (const ParamSpec& spec : parameters(o_.config)) {
      if (spec.trained()) trained.push_back(spec.name);
    }
    std::vector<double> squares(trained.size());
    step_.get<double>(kNorms, squares);
    for (size_t i = 0; i < trained.size(); ++i) {
      if (!std::isfinite(squares[i])) return "the gradient of " + trained[i];
    }
    return "the loss";
  }

  // A norm that is not finite has kept the update from being applied. One step can have bad luck,
  // and with fp16 the scale is being found; several in a row do not come right by themselves.
  void not_finite(float loss, float norm) {
    last_not_finite_ = first_not_finite();
    const bool hopeless = scale_.used() ? scale_.exhausted() : skipped_in_a_row_ + 1 >= kMostInARow;
    if (!hopeless && !updates_early()) return;
    const auto kept = newest_checkpoint(o_.out);
    fail(Exit::numbers,
         fmt::format("step {}: {} is not finite (loss {}, norm {}); {}", done_ + 1,
                     last_not_finite_, loss, norm,
                     updates_early() ? "the update was not applied to it, and nothing was saved"
                                     : fmt::format("the update was not applied, {} times in a row",
                                                   skipped_in_a_row_ + 1)),
         fmt::format("{}; try a smaller --lr, --clip 1 or --warmup",
                     kept ? "the last good state is " + kept->string() : "nothing was saved yet"));
  }

  void note_skipped(const StepRecord& record) {
    note(fmt::format(
        "step {}: {} is not finite: the update was not applied{}", record.step, last_not_finite_,
        scale_.used() ? fmt::format("; the loss scale is now {}", scale_.saved()) : ""));
  }

  bool due(int64_t every) const { return every > 0 && (done_ % every == 0 || done_ == o_.steps); }

  void save() {
    const Saving saving(control_);
    save_tried_ = done_;
    save_checkpoint(checkpoint_path(o_.out, done_),
                    {done_, done_ * o_.step.batch, o_.seed, o_.config, source_.info().pixels,
                     o_.settings, optimizers()[static_cast<size_t>(o_.step.optimizer)].name,
                     storage_text(planned_.step.choices.storage), updates_, scale_.saved(),
                     scale_.clean_steps(), data_, average_start_, pruned_},
                    state_);
    saved_ = done_;
    prune_checkpoints(o_.out, o_.keep);
  }

  void draw_samples() {
    const SamplerSpec& sampler = *planned_.sampler;
    Drawer drawer(planned_.plans, sampler, o_.config, session_.device(), session_.memory());
    const OutputSpec where = sample_output(o_, source_, done_);
    const auto output = make_output(where);
    const Drawn drawn = drawer.draw(
        where.count(), [&](int64_t place) { return where.label(place); }, o_.seed,
        [&](int64_t first, int64_t n, const float* values) { output->take(first, n, values); },
        control_.stop,
        [&](int64_t done, int step) {
          for (RunSink* sink : sinks_) {
            sink->drawing({done, where.count(), sampler.batch, step, sampler.steps});
          }
        });
    drawn_peak_ = std::max(drawn_peak_, drawer.peak_bytes());
    if (drawn == Drawn::all) output->finish();
    if (drawn == Drawn::not_finite) {
      note(fmt::format("step {}: what the model draws is not finite: no pictures", done_));
    }
  }

  // A second request to stop waits for the end of it.
  class Saving {
   public:
    explicit Saving(const RunControl& control) : control_(control) { control_.saving(true); }
    ~Saving() { control_.saving(false); }
    Saving(const Saving&) = delete;
    Saving& operator=(const Saving&) = delete;

   private:
    const RunControl& control_;
  };

  const TrainOptions& o_;
  const Source& source_;
  const PlannedRun& planned_;
  RunFolder& folder_;
  std::vector<RunSink*> sinks_;
  const RunControl& control_;
  Session session_;
  Executor& step_;
  State& state_;
  LossScale scale_;
  int64_t drawn_peak_ = 0;  // of the arena, while drawing
  int64_t done_ = 0;        // optimizer steps done,
  int64_t updates_ = 0;     // and those of them that were applied
  int skipped_in_a_row_ = 0;
  std::string last_not_finite_;  // of the step that was skipped last
  double average_start_ = 1;     // the share of the starting weights in the average
  const DataRecord data_ = record_of(source_.info());
  std::vector<std::string> notes_;  // for the beginning
  std::string converted_from_;      // what a checkpoint said of its storage,
  std::string pruned_;              // and of its pruning, which later ones say too
  double unused_scale_ = 0;         // a checkpoint's, where this run has none
  int64_t saved_ = -1;              // step of the last checkpoint written or resumed from,
  int64_t save_tried_ = -1;         // and of the last one begun
  bool sound_ = true;               // the state is that after done_ steps
};

}  // namespace

Trained train(const TrainOptions& options, const Source& source, const PlannedRun& planned,
              const Machine& machine, const std::vector<RunSink*>& sinks,
              const RunControl& control) {
  RunFolder folder(options.out, {options.resume, options.resume_step});
  return Trainer(options, source, planned, machine, folder, sinks, control).run();
}

}  // namespace ebb
