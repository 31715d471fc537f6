#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "api/resolve.h"
#include "api/saved_model.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/checkpoint_of.h"
#include "cli/classes.h"
#include "cli/drawing_progress.h"
#include "cli/resolve.h"
#include "cli/signals.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "sample/output.h"
#include "state/average.h"
#include "state/checkpoint.h"
#include "train/pictures.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

std::vector<int32_t> classes_of(const Settings& s, const SavedModel& model) {
  if (!s.sample_classes.empty()) {
    return parse_classes(s.sample_classes, "--classes", model.classes(), model.class_names());
  }
  return spread_classes(model.classes(), std::max<int64_t>(1, model.classes()));
}

// What a killed process has left of the same file, where files cannot be without a name.
void sweep_leftovers(const OutputSpec& output) {
  const fs::path path = output.real_path();
  if (path.has_filename()) {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    remove_stale_temporaries(folder, path.filename().string());
  }
}

// False: a signal has stopped it.
bool draw_or_say_what_is_missing(SavedModel& model, const OutputSpec& where, const Settings& s,
                                 const DrawingCalls& calls) {
  try {
    return model.draw(where.count(), static_cast<uint64_t>(s.seed), calls);
  } catch (const Error& e) {
    if (e.code() != Exit::numbers) throw;
    fail(e.code(), fmt::format("{}: {} was not written", e.what(), where.real_path().string()),
         e.hint());
  }
}

}  // namespace

int run_sample(Settings s) {
  need(s, "from");
  need(s, "out");
  const MeasuredMachine machine = resolve_machine(s);
  const int64_t budget = resolve_budget(s, machine);
  SavedModel model(machine, checkpoint_of(s.from), budget);
  const CheckpointInfo& info = model.impl().info;
  Drawing drawing = drawing_in(s);
  constexpr int64_t kMostTogether = 64;
  drawing.together = s.sample_batch > 0 ? s.sample_batch : kMostTogether;
  const SamplerSpec spec = resolve(drawing, info.config, info.pixels);  // before classes
  OutputSpec where{s.out, info.config, info.pixels, classes_of(s, model), s.count};
  name_classes(where, model.class_names());
  model.plan(drawing, {where.count(), where.held_bytes(), s.sample_batch > 0});
  catch_stop_signals("stopping; again to stop at once\n");
  sweep_leftovers(where);
  const auto output = make_output(where);
  model.load();
  fmt::print("{} samples after step {}, {} weights, {} {} steps, guidance {}\n", where.count(),
             model.steps_done(), s.weights, sampler_name(spec.kind), spec.steps, spec.guidance);
  const std::string note = average_note(info.average_start, info.step);
  if (s.weights == "ema" && !note.empty()) fmt::print("{}\n", note);
  StatusLine line;
  DrawingProgress progress(line, false);
  DrawingCalls calls;
  calls.label = [&](int64_t place) { return where.label(place); };
  calls.take = [&](int64_t first, int64_t n, const float* values) {
    output->take(first, n, values);
  };
  calls.stop = [] { return stop_signal() != 0; };
  calls.watch = [&](int64_t done, int64_t step) {
    progress.show({done, where.count(), model.together(), static_cast<int>(step), spec.steps});
  };
  if (!draw_or_say_what_is_missing(model, where, s, calls)) return 128 + stop_signal();
  output->finish();
  line.say(fmt::format("wrote {}{}", where.real_path().string(),
                       model.pictures() ? "" : ": the model draws latents and has no decoder"));
  return 0;
}

}  // namespace ebb
