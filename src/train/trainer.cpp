#include "train/trainer.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "data/loader.h"
#include "formats/atomic_file.h"
#include "kernels/cpu/device.h"
#include "run/executor.h"
#include "run/process.h"
#include "run/run_memory.h"
#include "sample/draw.h"
#include "sample/output.h"
#include "train/budget.h"
#include "train/checkpoint.h"
#include "train/log.h"
#include "train/loss_scale.h"
#include "train/plan_text.h"
#include "train/signals.h"

namespace ebb {

namespace {

Loader::Options loader_options(const TrainOptions& o) {
  return {o.seed, o.step.batch, o.flip, o.loader_threads, 2};
}

OutputSpec sample_output(const TrainOptions& o, const Source& source, int64_t step) {
  return {o.out / "samples" / fmt::format("step-{:09}.png", step), o.config, source.info().pixels,
          o.sample_classes, o.samples_each};
}

class Trainer {
 public:
  Trainer(const TrainOptions& options, const Source& source, const PlannedRun& planned)
      : o_(options),
        source_(source),
        planned_(planned),
        memory_(planned.plans, options.offload),
        step_(planned.step_plan(), cpu_device(), memory_,
              o_.debug_memory ? Executor::Mode::debug_memory : Executor::Mode::normal),
        state_(planned.step_plan(), memory_),
        scale_(uses_fp16()) {}

  int run() {
    check_folder();
    start_state();
    prepare_folder();
    say_plan();
    Loader loader(source_, loader_options(o_), done_, loader_memory());
    JsonLog log(o_.out / "log.jsonl", done_);
    Progress progress(o_.steps, done_, o_.log_every);
    while (done_ < o_.steps && stop_signal() == 0) {
      const StepRecord record = one_step(loader);
      for (const std::string& note : loader.take_notes()) progress.say("left out: " + note);
      log.write(record);
      progress.show(record);
      if (record.skipped) note_skipped(record, progress);
      if (due(o_.sample_every)) draw_samples();
      if (due(o_.save_every)) save();
    }
    if (stop_signal() == 0) {
      say_end(progress);
      return 0;
    }
    if (saved_ != done_) save();
    progress.say(fmt::format("stopped by signal {} after step {}; --resume goes on from there",
                             stop_signal(), done_));
    return 128 + stop_signal();
  }

 private:
  std::span<std::byte> loader_memory() {
    const Plan& plan = planned_.step_plan();
    const Buf b = plan.program.at(kLoaderMemory);
    return {memory_.data() + plan.offsets[b.id],
            static_cast<size_t>(plan.program.buffer(b).bytes())};
  }

  void check_folder() const {
    const auto newest = newest_checkpoint(o_.out);
    if (!o_.resume && newest) {
      fail(Exit::usage,
           fmt::format("--out: {} already holds a run ({})", o_.out.string(),
                       newest->filename().string()),
           "--resume goes on with it; another --out starts afresh");
    }
    if (o_.resume && !newest) {
      fail(Exit::disk,
           fmt::format("--resume: no checkpoint in {}", (o_.out / "checkpoints").string()),
           "give the --out of an earlier run, or leave --resume out");
    }
  }

  void prepare_folder() const {
    make_directories(o_.out / "checkpoints");
    if (o_.sample_every > 0) make_directories(o_.out / "samples");
    for (const auto& folder : {o_.out, o_.out / "checkpoints", o_.out / "samples"}) {
      if (std::filesystem::exists(folder)) remove_stale_temporaries(folder);
    }
    write_file_atomically(o_.out / "settings.toml", o_.settings);
  }

  // Random weights, or those of the newest checkpoint.
  void start_state() {
    if (o_.resume) {
      const SafetensorsReader file(*newest_checkpoint(o_.out), Exit::disk,
                                   header_limit(o_.budget_bytes));
      const CheckpointInfo info = read_info(file);
      if (!(info.config == o_.config) || info.samples != info.step * o_.step.batch ||
          info.seed != o_.seed) {
        fail(Exit::disk,
             fmt::format("{}: its model, batch or seed is not the one asked for",
                         file.path().string()),
             "resume with the run's own settings.toml, or start another --out");
      }
      verify_hashes(file);
      load_state(file, state_, o_.config);
      done_ = saved_ = info.step;
      updates_ = info.updates;
      scale_ = LossScale(uses_fp16(), info.loss_scale, info.clean_steps);
      unused_scale_ = scale_.used() ? 0 : info.loss_scale;
      converted_from_ = info.storage;
      return;
    }
    // Moments are zero since the arena was mapped; the average starts at the weights.
    for (const ParamSpec& spec : parameters(o_.config)) {
      start(spec, spec.name);
      if (spec.trained() && o_.step.ema) start(spec, kAverage + spec.name);
    }
  }

  void start(const ParamSpec& spec, const std::string& name) {
    state_.fill(state_.at(name), [&](float* values, int64_t first, int64_t count) {
      initialise_part(values, first, count, spec, o_.seed, o_.config);
    });
  }

  bool uses_fp16() const { return planned_.step.choices.storage.activation == DType::f16; }

  void say_plan() const {
    fmt::print("{}: {} parameters, batch {}, {} samples ({})\n", o_.name,
               parameter_count(o_.config), o_.step.batch, source_.info().count,
               source_.info().kind);
    for (const std::string& note : source_.info().notes) fmt::print("data: {}\n", note);
    print_memory(planned_, o_.budget_bytes);
    print_techniques(o_.config, planned_);
    print_outlook(o_.outlook, done_, "");
    if (done_ > 0) fmt::print("resumed after step {}\n", done_);
    const std::string storage = storage_text(planned_.step.choices.storage);
    if (!converted_from_.empty() && converted_from_ != storage) {
      fmt::print("converted: the checkpoint's run stored {}, this one stores {}\n",
                 printable(converted_from_), storage);
    }
    if (unused_scale_ != 0) {
      fmt::print("the checkpoint's loss scale of {} is for fp16 only: left out\n", unused_scale_);
    }
    std::fflush(stdout);
  }

  // An input of the step, as long as it was planned.
  template <typename T>
  std::span<T> host_span(T* data, const char* name) const {
    const Program& program = planned_.step_plan().program;
    return {data, static_cast<size_t>(program.buffer(program.at(name)).bytes()) / sizeof(T)};
  }

  // Where everything is, and what to type next.
  void say_end(Progress& progress) const {
    const auto saved = newest_checkpoint(o_.out);
    progress.say(fmt::format("done: {} steps; {}", done_,
                             saved ? "checkpoint " + saved->string() : "nothing was saved"));
    if (o_.sample_every > 0) {
      progress.say(fmt::format("pictures: {}/", (o_.out / "samples").string()));
    }
    if (!saved) return;
    std::string how;
    if (o_.sample_every > 0) how += fmt::format(" --steps {}", o_.sampler.steps);
    if (o_.sample_every > 0 && o_.config.classes > 0) {
      how += fmt::format(" --guidance {}", o_.sampler.guidance);
    }
    const auto grid = o_.out / (source_.info().pixels ? "grid.png" : "latents.npy");
    progress.say(fmt::format("draw more: {} sample --from {} --count 8{} --out {}",
                             shell_word(program_invocation_name), shell_word(o_.out.string()), how,
                             shell_word(grid.string())));
  }

  StepRecord one_step(Loader& loader) {
    const auto start = std::chrono::steady_clock::now();
    int32_t* labels = o_.config.classes > 0 ? step_.host<int32_t>(kBatchY) : nullptr;
    unlabelled_.resize(labels ? 0 : o_.step.batch);
    loader.next(host_span(step_.host(kBatchX), kBatchX),
                labels ? host_span(labels, kBatchY) : std::span(unlabelled_), done_);
    Scalars scalars = step_scalars(o_, done_, updates_);
    scalars.loss_scale = scale_.factor();
    step_.run(scalars);
    const float loss = *step_.host(kLoss);
    const float norm = step_.host(kClip)[0];
    const bool finite = std::isfinite(loss) && std::isfinite(norm);
    if (!finite) not_finite(loss, norm);
    const double scale = scale_.saved();
    scale_.after_step(finite);
    skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
    updates_ += finite ? 1 : 0;
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
    const double* squares = step_.host<double>(kNorms);
    for (const ParamSpec& spec : parameters(o_.config)) {
      if (spec.trained() && !std::isfinite(*squares++)) return "the gradient of " + spec.name;
    }
    return "the loss";
  }

  // A norm that is not finite has kept the update from being applied. One step can have bad luck,
  // and with fp16 the scale is being found; several in a row do not come right by themselves.
  void not_finite(float loss, float norm) const {
    constexpr int kMostInARow = 4;
    const bool hopeless = scale_.used() ? scale_.exhausted() : skipped_in_a_row_ + 1 >= kMostInARow;
    if (!hopeless && !updates_early()) return;
    const auto kept = newest_checkpoint(o_.out);
    fail(Exit::numbers,
         fmt::format("step {}: {} is not finite (loss {}, norm {}); {}", done_ + 1,
                     first_not_finite(), loss, norm,
                     updates_early() ? "the update was not applied to it, and nothing was saved"
                                     : fmt::format("the update was not applied, {} times in a row",
                                                   skipped_in_a_row_ + 1)),
         fmt::format("{}; try a smaller --lr, --clip 1 or --warmup",
                     kept ? "the last good state is " + kept->string() : "nothing was saved yet"));
  }

  void note_skipped(const StepRecord& record, Progress& progress) const {
    progress.say(fmt::format(
        "step {}: {} is not finite: the update was not applied{}", record.step, first_not_finite(),
        scale_.used() ? fmt::format("; the loss scale is now {}", scale_.saved()) : ""));
  }

  bool due(int64_t every) const { return every > 0 && (done_ % every == 0 || done_ == o_.steps); }

  void save() {
    const auto path = checkpoint_path(o_.out, done_);
    save_checkpoint(path,
                    {done_, done_ * o_.step.batch, o_.seed, o_.config, source_.info().pixels,
                     o_.settings, storage_text(planned_.step.choices.storage), updates_,
                     scale_.saved(), scale_.clean_steps()},
                    state_);
    prune_checkpoints(o_.out, o_.keep);
    saved_ = done_;
  }

  void draw_samples() {
    Drawer drawer(planned_.plans.plans[1], planned_.plans.plans[2], *planned_.sampler, o_.config,
                  cpu_device(), memory_);
    const OutputSpec where = sample_output(o_, source_, done_);
    const auto output = make_output(where);
    drawer.draw(
        where.count(), [&](int64_t place) { return where.label(place); }, o_.seed,
        [&](int64_t first, int64_t n, const float* values) { output->take(first, n, values); });
    output->finish();
    drawn_peak_ = std::max(drawn_peak_, drawer.peak_bytes());
  }

  const TrainOptions& o_;
  const Source& source_;
  const PlannedRun& planned_;
  RunMemory memory_;
  Executor step_;
  State state_;
  LossScale scale_;
  std::vector<int32_t> unlabelled_;
  int64_t drawn_peak_ = 0;  // of the arena, while drawing
  int64_t done_ = 0;        // optimizer steps done,
  int64_t updates_ = 0;     // and those of them that were applied
  int skipped_in_a_row_ = 0;
  std::string converted_from_;  // what a checkpoint said of its storage
  double unused_scale_ = 0;     // a checkpoint's, where this run has none
  int64_t saved_ = -1;          // step of the last checkpoint written or resumed from
};

}  // namespace

RunSpec run_spec(const TrainOptions& o, const Source* source) {
  RunSpec spec{o.name, o.config, o.step, {}, o.forced, o.budget_bytes};
  if (o.sample_every > 0) spec.sampler = o.sampler;
  if (source == nullptr) return spec;
  spec.step.loader_bytes = Loader::memory_bytes(*source, loader_options(o));
  spec.data_bytes = source->held_bytes();
  spec.held_bytes = o.loader_threads * source->heap_bytes();
  if (o.sample_every > 0) spec.held_bytes += sample_output(o, *source, 0).held_bytes();
  return spec;
}

Scalars step_scalars(const TrainOptions& o, int64_t k, int64_t updates) {
  const auto n = static_cast<double>(k + 1);
  const auto update = static_cast<double>(updates + 1);
  Scalars s;
  s.seed = o.seed;
  s.step = k;
  const double share = o.warmup > 0 ? std::min(1.0, n / static_cast<double>(o.warmup)) : 1.0;
  s.lr = static_cast<float>(o.lr * share);
  s.bias1 = static_cast<float>(1 - std::pow(o.step.beta1, update));
  s.bias2 = static_cast<float>(1 - std::pow(o.step.beta2, update));
  const double decay = o.ema_ramp ? std::min(o.ema_decay, n / (n + 9)) : o.ema_decay;
  const bool averages = (k + 1) % o.ema_every == 0;
  s.ema_decay = averages ? std::pow(decay, static_cast<double>(o.ema_every)) : 1;
  return s;
}

int train(const TrainOptions& options, const Source& source, const PlannedRun& planned) {
  catch_stop_signals();
  return Trainer(options, source, planned).run();
}

}  // namespace ebb
