#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "kernels/cpu/device.h"
#include "run/run_memory.h"
#include "sample/draw.h"
#include "sample/output.h"
#include "train/budget.h"
#include "train/checkpoint.h"
#include "train/outside.h"
#include "train/status_line.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

fs::path checkpoint_of(const std::string& from) {
  if (!fs::exists(from)) {
    fail(Exit::disk, fmt::format("--from: {} does not exist", from), "give a run's folder");
  }
  if (!fs::is_directory(from)) return from;
  if (const auto newest = newest_checkpoint(from)) return *newest;
  fail(Exit::disk,
       fmt::format("--from: no checkpoint in {}", (fs::path(from) / "checkpoints").string()),
       "train with --save-every, or give the checkpoint's file");
}

std::vector<int32_t> classes_of(const Settings& s, const DitConfig& config) {
  std::vector<int32_t> classes;
  if (!s.sample_classes.empty()) {
    for (const std::string& word : split(s.sample_classes, ',')) {
      const int64_t value = parse_int(word, "--classes");
      if (value < 0 || value >= config.classes) {
        fail(
            Exit::usage,
            fmt::format("--classes: found {}, but the model has {} classes", value, config.classes),
            config.classes > 0 ? fmt::format("wanted 0 to {}", config.classes - 1)
                               : "leave --classes out");
      }
      classes.push_back(static_cast<int32_t>(value));
    }
    return classes;
  }
  for (int64_t c = 0; c < std::max<int64_t>(1, config.classes); ++c) {
    classes.push_back(static_cast<int32_t>(c));
  }
  return classes;
}

struct Planned {
  SamplerSpec spec;
  PlanSet plans;
};

// The largest batch, halving from --batch or 64, that the budget holds beside what the output
// holds.
Planned plan_sampler(const Settings& s, const OutputSpec& output, SamplerSpec spec,
                     int64_t budget) {
  spec.batch = std::min<int64_t>(output.count(), s.sample_batch > 0 ? s.sample_batch : 64);
  const int64_t around = outside_bytes(0) + output.held_bytes();
  while (true) {
    auto programs = sampler_programs(output.config, spec, cpu_device());
    Planned made{spec, make_plans(std::move(programs))};
    const int64_t outside = around + bookkeeping_bytes(made.plans);
    const bool last = spec.batch == 1 || s.sample_batch > 0;
    if (last || made.plans.arena_bytes + outside <= budget) {
      check_budget(made.plans.arena_bytes, outside, budget,
                   fmt::format("drawing {} samples with {}, {} together,", output.count(),
                               model_label(s, output.config), spec.batch),
                   "give a larger --memory, a smaller --batch or --count, or --out FILE.npz");
      return made;
    }
    spec.batch /= 2;
  }
}

// How far the drawing is: what has passed tells what is left.
class DrawingProgress {
 public:
  DrawingProgress(int64_t count, const SamplerSpec& spec)
      : count_(count), spec_(spec), start_(std::chrono::steady_clock::now()) {}

  void show(int64_t drawn, int step) {
    const int64_t batches = (count_ + spec_.batch - 1) / spec_.batch;
    const auto all = static_cast<double>(batches * spec_.steps);
    const auto done = static_cast<double>(drawn / spec_.batch * spec_.steps + step);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const bool last = done == all, plain = cadence_.due();
    if (last) {
      line_.show({{fmt::format("{0}/{0} drawn", count_), 1},
                  {format_seconds(passed.count()) + " in all", 2}},
                 plain, last);
      return;
    }
    line_.show({{fmt::format("{}/{} drawn", drawn, count_), 1},
                {fmt::format("step {}/{} of the next {}", step, spec_.steps,
                             std::min(spec_.batch, count_ - drawn)),
                 3},
                {format_seconds(passed.count() / done * (all - done)) + " left", 2}},
               plain, last);
  }
  void say(const std::string& text) { line_.say(text); }

 private:
  int64_t count_;
  const SamplerSpec& spec_;
  std::chrono::steady_clock::time_point start_;
  Cadence cadence_;
  StatusLine line_;
};

}  // namespace

int run_sample(Settings s) {
  need(s, "from");
  need(s, "out");
  resolve_threads(s);
  const int64_t budget = resolve_budget(s);
  const SafetensorsReader file(checkpoint_of(s.from), Exit::disk, header_limit(budget));
  const CheckpointInfo info = read_info(file);
  SamplerSpec spec = resolve_sampler(s, info.config, info.pixels);
  if (s.weights == "raw") spec.weights_prefix = "";
  const OutputSpec where{s.out, info.config, info.pixels, classes_of(s, info.config), s.count};
  const Planned planned = plan_sampler(s, where, spec, budget);
  verify_hashes(file);
  const auto output = make_output(where);
  RunMemory memory(planned.plans, {});
  State state(planned.plans.plans[1], memory);
  load_state(file, state, info.config);
  fmt::print("{} samples after step {}, {} weights, {} {} steps, guidance {}\n", where.count(),
             info.step, s.weights, sampler_name(spec.kind), spec.steps, spec.guidance);
  Drawer drawer(planned.plans.plans[0], planned.plans.plans[1], planned.spec, info.config,
                cpu_device(), memory);
  DrawingProgress progress(where.count(), planned.spec);
  drawer.draw(
      where.count(), [&](int64_t place) { return where.label(place); },
      static_cast<uint64_t>(s.seed),
      [&](int64_t first, int64_t n, const float* values) { output->take(first, n, values); },
      [&](int64_t drawn, int step) { progress.show(drawn, step); });
  output->finish();
  progress.say(fmt::format("wrote {}{}", where.real_path().string(),
                           info.pixels ? "" : ": the model draws latents and has no decoder"));
  return 0;
}

}  // namespace ebb
