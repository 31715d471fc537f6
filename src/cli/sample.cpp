#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "api/resolve.h"
#include "api/saved_model.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/checkpoint_of.h"
#include "cli/classes.h"
#include "cli/drawing_progress.h"
#include "cli/ranks.h"
#include "cli/resolve.h"
#include "cli/signals.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "comm/agreement.h"
#include "data/fingerprint.h"
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

// What is drawn, and where it goes.
struct Pictures {
  Drawing drawing;
  SamplerSpec sampler;
  OutputSpec where;
};

Pictures pictures_of(const Settings& s, const SavedModel& model) {
  const CheckpointInfo& info = model.impl().info;
  Drawing drawing = drawing_in(s);
  constexpr int64_t kMostTogether = 64;
  drawing.together = s.sample_batch > 0 ? s.sample_batch : kMostTogether;
  const SamplerSpec sampler = resolve(drawing, info.config, info.pixels);  // before classes
  OutputSpec where{s.out, info.config, info.pixels, classes_of(s, model), s.count};
  name_classes(where, model.class_names());
  return {drawing, sampler, where};
}

// Of several ranks the first has the output; each draws its part.
SavedModel::Extent extent_of(const Settings& s, const OutputSpec& where, const Machine& machine,
                             const Peers* peers) {
  SavedModel::Extent extent{where.count(), where.held_bytes(), s.sample_batch > 0};
  if (peers == nullptr) return extent;
  extent.samples = (extent.samples + peers->size() - 1) / peers->size();
  if (peers->rank() > 0) extent.held_bytes = 0;
  extent.held_bytes += machine.peers_bytes;
  return extent;
}

void compare(Peers& peers, const Settings& s, const SavedModel& model) {
  compare_ranks(peers, inside(model.impl().machine), settings_toml("sample", s));
  Fingerprint print("checkpoint");
  for (const auto& [key, value] : model.impl().file.metadata()) {
    print.add(key);
    print.add(value);
  }
  expect_same(peers, "checkpoint", print.hex(), "every rank has to see the same files");
}

void say_what_comes(const Settings& s, const SavedModel& model, const Pictures& pictures) {
  const CheckpointInfo& info = model.impl().info;
  fmt::print("{} samples after step {}, {} weights, {} {} steps, guidance {}\n",
             pictures.where.count(), model.steps_done(), s.weights,
             sampler_name(pictures.sampler.kind), pictures.sampler.steps,
             pictures.sampler.guidance);
  const std::string note = average_note(info.average_start, info.step);
  if (s.weights == "ema" && !note.empty()) fmt::print("{}\n", note);
}

// False: a signal has stopped it.
bool draw_or_say_what_is_missing(SavedModel& model, const OutputSpec& where, const Settings& s,
                                 const DrawingCalls& calls, Peers* peers) {
  const auto seed = static_cast<uint64_t>(s.seed);
  try {
    return peers != nullptr ? draw_shared(model, where.count(), seed, calls, *peers)
                            : model.draw(where.count(), seed, calls);
  } catch (const Error& e) {
    if (e.code() != Exit::numbers) throw;
    fail(e.code(), fmt::format("{}: {} was not written", e.what(), where.real_path().string()),
         e.hint());
  }
}

// Over ranks every one of them calls it; the first speaks and writes.
int draw_to_file(const Settings& s, const MeasuredMachine& machine, int64_t budget, Peers* peers) {
  const bool first = peers == nullptr || peers->rank() == 0;
  std::string from;
  agree(peers, [&] {
    if (first) from = checkpoint_of(s.from).string();
  });
  if (peers != nullptr) from = from_first(*peers, from);
  std::optional<SavedModel> model;
  Pictures pictures;
  agree(peers, [&] {
    model.emplace(machine, from, budget);
    pictures = pictures_of(s, *model);
    model->plan(pictures.drawing, extent_of(s, pictures.where, inside(machine), peers));
  });
  if (peers != nullptr) compare(*peers, s, *model);
  const OutputSpec& where = pictures.where;
  catch_stop_signals("stopping; again to stop at once\n");
  std::unique_ptr<SampleOutput> output;
  agree(peers, [&] {
    if (first) sweep_leftovers(where);
    if (first) output = make_output(where);
    model->load();
  });
  if (first) say_what_comes(s, *model, pictures);
  StatusLine line;
  DrawingProgress progress(line, false);
  DrawingCalls calls;
  calls.label = [&](int64_t place) { return where.label(place); };
  calls.take = [&](int64_t at, int64_t n, const float* values) { output->take(at, n, values); };
  calls.stop = [] { return stop_signal() != 0; };
  const int64_t together = model->together() * (peers != nullptr ? peers->size() : 1);
  calls.watch = [&](int64_t done, int64_t step) {
    if (!first) return;
    progress.show({done, where.count(), together, static_cast<int>(step), pictures.sampler.steps});
  };
  bool all = false;
  agree(peers, [&] { all = draw_or_say_what_is_missing(*model, where, s, calls, peers); });
  if (!all) return 128 + agreed_signal(peers);
  agree(peers, [&] {
    if (first) output->finish();
  });
  if (!first) return 0;
  line.say(fmt::format("wrote {}{}", where.real_path().string(),
                       model->pictures() ? "" : ": the model draws latents and has no decoder"));
  return 0;
}

}  // namespace

int run_sample(Settings s) {  // NOLINT(performance-unnecessary-value-param): as every verb
  need(s, "from");
  need(s, "out");
  check_equal_ranks(s, nullptr);
  const MeasuredMachine machine = resolve_machine(s);
  return draw_to_file(s, machine, resolve_budget(s, machine), nullptr);
}

int sample_over_ranks(Settings s, Peers& peers) {
  agree(&peers, [&] {
    need(s, "from");
    need(s, "out");
    check_equal_ranks(s, &peers);
  });
  const MeasuredMachine machine = resolve_machine_together(s, peers);
  return draw_to_file(s, machine, resolve_budget_of_rank(s, machine), &peers);
}

}  // namespace ebb
