#include "train/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "data/loader.h"
#include "formats/atomic_file.h"
#include "kernels/cpu/device.h"
#include "run/arena.h"
#include "run/executor.h"
#include "run/process.h"
#include "sample/draw.h"
#include "sample/output.h"
#include "train/budget.h"
#include "train/checkpoint.h"
#include "train/log.h"
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
        arena_(planned.plans.arena_bytes),
        step_(planned.step_plan(), cpu_device(), arena_.data(),
              o_.debug_memory ? Executor::Mode::debug_memory : Executor::Mode::normal) {}

  int run() {
    check_folder();
    start_state();
    prepare_folder();
    say_plan();
    Loader loader(source_, loader_options(o_), done_, loader_memory());
    JsonLog log(o_.out / "log.jsonl", done_);
    Progress progress(o_.steps, o_.log_every);
    while (done_ < o_.steps && stop_signal() == 0) {
      const StepRecord record = one_step(loader);
      log.write(record);
      progress.show(record);
      if (due(o_.sample_every)) draw_samples();
      if (due(o_.save_every)) save();
    }
    if (stop_signal() == 0) return 0;
    if (saved_ != done_) save();
    progress.say(fmt::format("stopped by signal {} after step {}; --resume goes on from there",
                             stop_signal(), done_));
    return 128 + stop_signal();
  }

 private:
  std::span<std::byte> loader_memory() {
    const Plan& plan = planned_.step_plan();
    const Buf b = plan.program.at(kLoaderMemory);
    return {arena_.data() + plan.offsets[b.id],
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
      load_state(file, planned_.step_plan(), arena_.data(), o_.config);
      done_ = saved_ = info.step;
      return;
    }
    for (const ParamSpec& spec : parameters(o_.config)) {
      float* weight = step_.host(spec.name);
      initialise(weight, spec, o_.seed, o_.config);
      // Moments are zero since the arena was mapped; the average starts at the weights.
      if (spec.trained() && o_.step.ema) {
        std::copy_n(weight, element_count(spec.shape), step_.host("ema." + spec.name));
      }
    }
  }

  void say_plan() const {
    fmt::print("{}: {} parameters, batch {}, {} samples ({})\n", o_.name,
               parameter_count(o_.config), o_.step.batch, source_.info().count,
               source_.info().kind);
    for (const std::string& note : source_.info().notes) fmt::print("data: {}\n", note);
    print_memory(planned_, o_.budget_bytes);
    print_techniques(o_.config, planned_);
    if (done_ > 0) fmt::print("resumed after step {}\n", done_);
    std::fflush(stdout);
  }

  StepRecord one_step(Loader& loader) {
    const auto start = std::chrono::steady_clock::now();
    int32_t* labels = o_.config.classes > 0 ? step_.host<int32_t>(kBatchY) : nullptr;
    unlabelled_.resize(labels ? 0 : o_.step.batch);
    loader.next(step_.host(kBatchX), labels ? labels : unlabelled_.data(), done_);
    const Scalars scalars = step_scalars(o_, done_);
    step_.run(scalars);
    const float loss = *step_.host(kLoss);
    const float norm = step_.host(kClip)[0];
    check_numbers(loss, norm);
    ++done_;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return {done_,
            loss,
            scalars.lr,
            norm,
            taken.count(),
            static_cast<double>(o_.step.batch) / taken.count(),
            std::max(step_.peak_bytes(), drawn_peak_),
            process_peak_bytes()};
  }

  // Layers behind the one whose gradient is not finite were updated before it was known.
  bool updates_early() const { return planned_.step.choices.release && o_.step.clip == 0; }

  // A norm that is not finite has kept the update from being applied.
  void check_numbers(float loss, float norm) const {
    if (std::isfinite(loss) && std::isfinite(norm)) return;
    std::string first = "the loss";
    const double* squares = step_.host<double>(kNorms);
    for (const ParamSpec& spec : parameters(o_.config)) {
      if (!spec.trained()) continue;
      if (!std::isfinite(*squares++)) {
        first = "the gradient of " + spec.name;
        break;
      }
    }
    const auto kept = newest_checkpoint(o_.out);
    fail(Exit::numbers,
         fmt::format("step {}: {} is not finite (loss {}, norm {}); {}", done_ + 1, first, loss,
                     norm,
                     updates_early() ? "the update was not applied to it, and nothing was saved"
                                     : "the update was not applied"),
         fmt::format("{}; try a smaller --lr, --clip 1 or --warmup",
                     kept ? "the last good state is " + kept->string() : "nothing was saved yet"));
  }

  bool due(int64_t every) const { return every > 0 && (done_ % every == 0 || done_ == o_.steps); }

  void save() {
    const auto path = checkpoint_path(o_.out, done_);
    save_checkpoint(
        path,
        {done_, done_ * o_.step.batch, o_.seed, o_.config, source_.info().pixels, o_.settings},
        planned_.step_plan(), arena_.data());
    prune_checkpoints(o_.out, o_.keep);
    saved_ = done_;
  }

  void draw_samples() {
    Drawer drawer(planned_.plans.plans[1], planned_.plans.plans[2], *planned_.sampler, o_.config,
                  cpu_device(), arena_.data());
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
  const Arena arena_;
  Executor step_;
  std::vector<int32_t> unlabelled_;
  int64_t drawn_peak_ = 0;  // of the arena, while drawing
  int64_t done_ = 0;        // optimizer steps done
  int64_t saved_ = -1;      // step of the last checkpoint written or resumed from
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

Scalars step_scalars(const TrainOptions& o, int64_t k) {
  const auto n = static_cast<double>(k + 1);
  Scalars s;
  s.seed = o.seed;
  s.step = k;
  const double share = o.warmup > 0 ? std::min(1.0, n / static_cast<double>(o.warmup)) : 1.0;
  s.lr = static_cast<float>(o.lr * share);
  s.bias1 = static_cast<float>(1 - std::pow(o.step.beta1, n));
  s.bias2 = static_cast<float>(1 - std::pow(o.step.beta2, n));
  s.ema_decay = o.ema_ramp ? std::min(o.ema_decay, n / (n + 9)) : o.ema_decay;
  return s;
}

int train(const TrainOptions& options, const Source& source, const PlannedRun& planned) {
  catch_stop_signals();
  return Trainer(options, source, planned).run();
}

}  // namespace ebb
