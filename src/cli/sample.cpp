#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/classes.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "kernels/cpu/device.h"
#include "run/run_memory.h"
#include "sample/draw.h"
#include "sample/output.h"
#include "train/average.h"
#include "train/budget.h"
#include "train/checkpoint.h"
#include "train/drawing_progress.h"
#include "train/outside.h"
#include "train/pictures.h"
#include "train/signals.h"

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

std::vector<int32_t> classes_of(const Settings& s, const CheckpointInfo& info) {
  if (!s.sample_classes.empty()) {
    return parse_classes(s.sample_classes, "--classes", info.config.classes, info.data.names);
  }
  return spread_classes(info.config.classes, std::max<int64_t>(1, info.config.classes));
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

// What a killed process has left of the same file, where files cannot be without a name.
void sweep_leftovers(const OutputSpec& output) {
  const fs::path path = output.real_path();
  if (path.has_filename()) {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    remove_stale_temporaries(folder, path.filename().string());
  }
}

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
  OutputSpec where{s.out, info.config, info.pixels, classes_of(s, info), s.count};
  name_classes(where, info.data.names);
  const Planned planned = plan_sampler(s, where, spec, budget);
  verify_hashes(file);
  catch_stop_signals("stopping; again to stop at once\n");
  sweep_leftovers(where);
  const auto output = make_output(where);
  RunMemory memory(planned.plans, {});
  State state(planned.plans.plans[1], memory);
  load_state(file, state, info.config);
  check_finite(state, file.path().string());
  fmt::print("{} samples after step {}, {} weights, {} {} steps, guidance {}\n", where.count(),
             info.step, s.weights, sampler_name(spec.kind), spec.steps, spec.guidance);
  const std::string note = average_note(info.average_start, info.step);
  if (s.weights == "ema" && !note.empty()) fmt::print("{}\n", note);
  Drawer drawer(planned.plans.plans[0], planned.plans.plans[1], planned.spec, info.config,
                cpu_device(), memory);
  StatusLine line;
  DrawingProgress progress(line, where.count(), planned.spec, false);
  const Drawn drawn = drawer.draw(
      where.count(), [&](int64_t place) { return where.label(place); },
      static_cast<uint64_t>(s.seed),
      [&](int64_t first, int64_t n, const float* values) { output->take(first, n, values); },
      [] { return stop_signal() != 0; },
      [&](int64_t done, int step) { progress.show(done, step); });
  if (drawn == Drawn::stopped) return 128 + stop_signal();
  if (drawn == Drawn::not_finite) {
    fail(Exit::numbers,
         fmt::format("{}: what the model draws is not finite: {} was not written",
                     file.path().string(), where.real_path().string()),
         "use an earlier checkpoint, a smaller --guidance, or leave --no-clip out");
  }
  output->finish();
  line.say(fmt::format("wrote {}{}", where.real_path().string(),
                       info.pixels ? "" : ": the model draws latents and has no decoder"));
  return 0;
}

}  // namespace ebb
