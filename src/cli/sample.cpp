#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/classes.h"
#include "cli/drawing_progress.h"
#include "cli/resolve.h"
#include "cli/signals.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "machine/budget.h"
#include "run/run_memory.h"
#include "sample/draw.h"
#include "sample/output.h"
#include "state/average.h"
#include "state/checkpoint.h"
#include "state/state.h"
#include "train/pictures.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

std::vector<int32_t> classes_of(const Settings& s, const CheckpointInfo& info) {
  if (!s.sample_classes.empty()) {
    return parse_classes(s.sample_classes, "--classes", info.config.classes, info.data.names);
  }
  return spread_classes(info.config.classes, std::max<int64_t>(1, info.config.classes));
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
  const Machine machine = resolve_machine(s);
  const int64_t budget = resolve_budget(s, machine);
  const SafetensorsReader file(checkpoint_of(s.from), Exit::disk, header_limit(budget));
  const CheckpointInfo info = read_info(file);
  SamplerSpec spec = resolve_sampler(s, info.config, info.pixels);
  if (s.weights == "raw") spec.weights_prefix = "";
  OutputSpec where{s.out, info.config, info.pixels, classes_of(s, info), s.count};
  name_classes(where, info.data.names);
  constexpr int64_t kMostTogether = 64;
  spec.batch = s.sample_batch > 0 ? s.sample_batch : kMostTogether;
  const PlannedSampling planned =
      plan_sampling({model_label(s, info.config), info.config, spec, s.sample_batch > 0,
                     where.count(), budget, where.held_bytes()},
                    machine);
  verify_hashes(file);
  catch_stop_signals("stopping; again to stop at once\n");
  sweep_leftovers(where);
  const auto output = make_output(where);
  RunMemory memory(planned.plans, machine);
  State state(planned.plans.at(kSamplerProgram), memory, info.config, {});
  load_state(file, state, info.config);
  check_finite(state, file.path().string());
  fmt::print("{} samples after step {}, {} weights, {} {} steps, guidance {}\n", where.count(),
             info.step, s.weights, sampler_name(spec.kind), spec.steps, spec.guidance);
  const std::string note = average_note(info.average_start, info.step);
  if (s.weights == "ema" && !note.empty()) fmt::print("{}\n", note);
  Drawer drawer(planned.plans, planned.sampler, info.config, *machine.device, memory);
  StatusLine line;
  DrawingProgress progress(line, false);
  const Drawn drawn = drawer.draw(
      where.count(), [&](int64_t place) { return where.label(place); },
      static_cast<uint64_t>(s.seed),
      [&](int64_t first, int64_t n, const float* values) { output->take(first, n, values); },
      [] { return stop_signal() != 0; },
      [&](int64_t done, int step) {
        progress.show({done, where.count(), planned.sampler.batch, step, spec.steps});
      });
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
