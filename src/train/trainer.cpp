#include "train/trainer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "machine/budget.h"
#include "state/checkpoint.h"
#include "train/json_log.h"
#include "train/resume.h"
#include "train/run.h"
#include "train/run_events.h"
#include "train/run_folder.h"
#include "train/stop_together.h"

namespace ebb {

namespace {

class Trainer {
 public:
  Trainer(TrainOptions options, const Source& source, PlannedRun planned, const Machine& machine,
          RunFolder* folder, std::optional<StoredCheckpoint> resumed, std::vector<RunSink*> sinks,
          const RunControl& control, Peers* peers)
      : o_(std::move(options)),
        source_(source),
        machine_(machine),
        folder_(folder),
        resumed_(std::move(resumed)),
        sinks_(std::move(sinks)),
        control_(control),
        peers_(peers),
        stop_(control, peers),
        data_(record_of(source.info())),
        events_(o_, source, machine, peers),
        planned_(std::move(planned)) {}

  Trained run() {
    std::optional<JsonLog> log;
    agree(peers_, [&] {
      begin();
      open_folder();
      say_started();
      run_->start_loading();
      if (folder_ == nullptr) return;
      log.emplace(o_.out / "log.jsonl", run_->done());
      sinks_.insert(sinks_.begin(), &*log);
    });
    try {
      while (run_->done() < o_.steps && !stop_.ask()) {
        StepRecord record = one_step();
        if (peers_ != nullptr) stop_.ask_after_step(run_->step_seconds(), record.ranks);
        for (const std::string& line : run_->take_notes()) note("left out: " + line);
        tell([&](RunSink& sink) { sink.step(record); });
        if (record.skipped) note_skipped(record);
        const bool changes = events_.due_after(run_->done());
        if (due(o_.save_every) || changes) save();
        if (changes) change_now();
        if (due(o_.sample_every) && !stop_.ask()) draw_samples();
      }
      return finish();
    } catch (const Error& e) {
      if (peers_ != nullptr) end_as_rank(e);
      if (e.code() == Exit::numbers) throw;  // what led there is not worth keeping
      fail(e.code(), e.what() + save_before_failing(), e.hint());
    } catch (const std::exception& e) {  // of a sink: nobody reads what it says any more, perhaps
      if (peers_ != nullptr) peers_->abandon(e.what());
      save_before_failing();
      throw;
    }
  }

 private:
  // What all fail with alike finds them all here, with nothing on its way between them: they can
  // save together.
  [[noreturn]] void end_as_rank(const Error& e) {
    // Every rank has the same loss and norm.
    if (e.code() == Exit::numbers) throw SharedError(e);
    if (dynamic_cast<const SharedError*>(&e) == nullptr) end_alone(e);
    std::string saved;
    try {
      saved = save_before_failing();
    } catch (const Error& lost) {
      end_alone(lost);
    }
    throw SharedError(e.code(), e.what() + (saved.empty() ? last_checkpoint() : saved), e.hint());
  }

  // The others are told before this rank's memory goes, which they may be sending to.
  [[noreturn]] void end_alone(const Error& e) {
    const std::string step =
        fmt::format("; step {} was not done", run_ ? run_->done() + 1 : saved_ + 1);
    if (e.code() != Exit::peer) peers_->abandon(e.what());
    fail(e.code(), e.what() + step + last_checkpoint(), e.hint());
  }

  std::string last_checkpoint() const {
    const auto kept = newest_checkpoint(o_.out);
    return kept ? "; the last checkpoint is " + kept->string() : "; nothing was saved yet";
  }

  Trained finish() {
    if (stop_.ask()) {  // perhaps while the last pictures were drawn
      if (saved_ != run_->done()) save();
      return {run_->done(), true};
    }
    if (!run_->ended_well()) {
      fail(Exit::numbers,
           fmt::format("the last {} steps were not applied: {} was not finite{}",
                       run_->skipped_in_a_row(), run_->last_not_finite(),
                       saved_ == run_->done() ? saved_text() : ""),
           "try a smaller --lr, --clip 1 or --warmup");
    }
    return {run_->done(), false};
  }

  // Sinks are one rank's: where there are others, what one of them fails with waits until all meet.
  void tell(const std::function<void(RunSink&)>& what) {
    stop_.apart([&] {
      for (RunSink* sink : sinks_) what(*sink);
    });
  }

  void note(const std::string& line) {
    tell([&](RunSink& sink) { sink.note(line); });
  }

  std::string saved_text() const {
    return fmt::format("; the state after step {} is saved in {}", saved_,
                       checkpoint_path(o_.out, saved_).string());
  }

  // The surroundings have failed - data, disk, terminal - and the steps that are done are sound.
  // For the error's line: where they are, or why they are not.
  std::string save_before_failing() {
    if (!run_) return saved_text();  // while it was changed
    if (!run_->sound() || run_->done() == 0) return "";
    try {
      if (saved_ != run_->done() && save_tried_ != run_->done()) save();
    } catch (const Error& e) {
      if (e.code() == Exit::peer) throw;
      return fmt::format("; and the state after step {} cannot be saved: {}", run_->done(),
                         e.what());
    }
    return saved_ == run_->done() ? saved_text() : "";
  }

  // ---- where the state comes from ----

  void take_memory() { run_.emplace(o_, source_, *planned_, machine_, peers_); }

  void open_folder() {
    if (std::exchange(opened_, true) || folder_ == nullptr) return;
    add_notes(folder_->open(o_.settings, o_.sample_every > 0));
  }

  void add_notes(const std::vector<std::string>& lines) {
    notes_.insert(notes_.end(), lines.begin(), lines.end());
  }

  void begin() {
    add_notes(events_.announced());
    if (resumed_) return go_on(resumed_->path);
    if (!o_.from.empty()) return go_on(o_.from);
    events_.check({});
    events_.plan_for(0, planned_);
    take_memory();
    run_->initialise();
  }

  // A file that cannot be used stays where it is; the error names the one before it, if any.
  template <typename Read>
  std::invoke_result_t<Read> guarded(Read read) {
    try {
      return read();
    } catch (const Error& e) {
      const bool of_file = e.code() == Exit::disk || e.code() == Exit::numbers;
      if (!resumed_ || !of_file) throw;
      fail_naming_earlier(e, o_.out, *resumed_);
    }
  }

  void go_on(std::filesystem::path path) {
    const CheckpointInfo info = read_info_of(path);
    if (resumed_) saved_ = info.step;
    events_.check(info.pruning);
    if (events_.prunes(info)) {
      if (!resumed_) open_folder();
      const DitConfig before = o_.config;
      const std::filesystem::path own = checkpoint_path(o_.out, info.step);
      add_notes(guarded([&] { return events_.carry_out(info.step, path, own, planned_); }));
      if (!(o_.config == before)) {
        saved_ = info.step;
        path = own;
      }
    }
    events_.plan_for(info.step, planned_);
    take_memory();
    load(path);
    unused_scale_ = run_->loss_scale().used() ? 0 : info.loss_scale;
    converted_from_ = info.storage;
  }

  SafetensorsReader opened(const std::filesystem::path& path) const {
    return SafetensorsReader(path, Exit::disk, header_limit(o_.budget_bytes));
  }

  // Of a file that this run can go on with.
  CheckpointInfo read_info_of(const std::filesystem::path& path) {
    const SafetensorsReader file = guarded([&] { return opened(path); });
    CheckpointInfo info = guarded([&] { return read_info(file); });
    if (resumed_) check_name(file, info, resumed_->step);
    check_run(file, info, o_);
    add_notes(accepted_data(file, info, data_, o_));
    return info;
  }

  void load(const std::filesystem::path& path) {
    guarded([&] { run_->load(opened(path), [](const CheckpointInfo&) {}); });
  }

  // ---- what changes while it is trained ----

  // The checkpoint of this step is there. The memory goes back to the system before anything is
  // done to the file, and what the run needs from now on is taken anew.
  void change_now() {
    const std::filesystem::path path = checkpoint_path(o_.out, run_->done());
    const int64_t done = run_->done();
    run_.reset();
    std::vector<std::string> what;
    agree(peers_, [&] {
      what = events_.carry_out(done, path, path, planned_);
      if (folder_ != nullptr) folder_->write_settings(o_.settings);
      take_memory();
      load(path);
      run_->start_loading();
    });
    for (const std::string& line : what) note(fmt::format("step {}: {}", done, line));
  }

  void say_started() {
    RunStarted start{o_, source_.info(), *planned_, run_->done(), notes_, {}};
    const std::string storage = storage_text(planned_->step.choices.storage);
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

  StepRecord one_step() {
    try {
      return run_->step();
    } catch (const Error& e) {
      if (e.code() != Exit::numbers) throw;
      const auto kept = newest_checkpoint(o_.out);
      fail(e.code(), e.what(),
           fmt::format("{}; {}",
                       kept ? "the last good state is " + kept->string() : "nothing was saved yet",
                       e.hint()));
    }
  }

  void note_skipped(const StepRecord& record) {
    const LossScale& scale = run_->loss_scale();
    note(fmt::format("step {}: {} is not finite: the update was not applied{}", record.step,
                     run_->last_not_finite(),
                     scale.used() ? fmt::format("; the loss scale is now {}", scale.saved()) : ""));
  }

  bool due(int64_t every) const {
    return every > 0 && (run_->done() % every == 0 || run_->done() == o_.steps);
  }

  void save() {
    const Saving saving(control_);
    stop_.pass_time();
    save_tried_ = run_->done();
    run_->save(checkpoint_path(o_.out, run_->done()));
    saved_ = run_->done();
    if (folder_ != nullptr) prune_checkpoints(o_.out, o_.keep);
  }

  void draw_samples() {
    const SamplerSpec& sampler = *planned_->sampler;
    const OutputSpec where = sample_output(o_, source_, run_->done());
    std::unique_ptr<SampleOutput> output;  // rank 0's
    agree(peers_, [&] {
      if (folder_ != nullptr) output = make_output(where);
    });
    const Drawn drawn = run_->draw(
        where.count(), [&](int64_t place) { return where.label(place); }, o_.seed,
        [&](int64_t first, int64_t n, const float* values) { output->take(first, n, values); },
        control_.stop,
        [&](int64_t done, int step) {
          const int64_t together = sampler.batch * (peers_ != nullptr ? peers_->size() : 1);
          tell([&](RunSink& sink) {
            sink.drawing({done, where.count(), together, step, sampler.steps});
          });
        });
    agree(peers_, [&] {
      if (drawn == Drawn::all && output) output->finish();
    });
    if (drawn == Drawn::not_finite) {
      note(fmt::format("step {}: what the model draws is not finite: no pictures", run_->done()));
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

  TrainOptions o_;  // another model after pruning
  const Source& source_;
  const Machine& machine_;
  RunFolder* const folder_;  // of ranks the first one's
  const std::optional<StoredCheckpoint> resumed_;
  std::vector<RunSink*> sinks_;
  const RunControl& control_;
  Peers* const peers_;  // null: alone
  StopTogether stop_;
  const DataRecord data_;
  RunEvents events_;
  std::optional<PlannedRun> planned_;
  std::optional<TrainingRun> run_;  // none while it is changed
  bool opened_ = false;             // the folder, for writing
  std::vector<std::string> notes_;  // for the beginning
  std::string converted_from_;      // what a checkpoint said of its storage
  double unused_scale_ = 0;         // a checkpoint's, where this run has none
  int64_t saved_ = -1;              // step of the last checkpoint written or resumed from,
  int64_t save_tried_ = -1;         // and of the last one begun
};

// The checkpoint that rank 0 resumes from, for all.
std::optional<StoredCheckpoint> told_by_first(Peers& peers, const RunFolder* folder) {
  const bool goes_on = folder != nullptr && folder->checkpoint().has_value();
  const std::string step =
      from_first(peers, goes_on ? std::to_string(folder->checkpoint()->step) : "");
  const std::string path = from_first(peers, goes_on ? folder->checkpoint()->path.string() : "");
  if (step.empty()) return std::nullopt;
  return StoredCheckpoint{std::stoll(step), path};
}

}  // namespace

Trained train(const TrainOptions& options, const Source& source, PlannedRun planned,
              const Machine& machine, const std::vector<RunSink*>& sinks, const RunControl& control,
              Peers* peers) {
  std::optional<RunFolder> folder;
  agree(peers, [&] {
    if (peers != nullptr && peers->rank() > 0) return;
    folder.emplace(options.out, RunFolder::Start{options.resume, options.resume_step});
  });
  RunFolder* own = folder ? &*folder : nullptr;
  auto resumed = peers != nullptr ? told_by_first(*peers, own) : folder->checkpoint();
  return Trainer(options, source, std::move(planned), machine, own, std::move(resumed), sinks,
                 control, peers)
      .run();
}

}  // namespace ebb
