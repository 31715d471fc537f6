#include <fmt/format.h>

#include "base/error.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "train/calibration.h"

namespace ebb {

void need(const Settings& settings, const std::string& name) {
  if (settings.has(name)) return;
  fail(Exit::usage, fmt::format("--{} is missing", name), "ebb VERB --help shows an example");
}

int run_train(Settings s) {
  need(s, "data");
  need(s, "out");
  if (!s.has("steps") && !s.has("epochs")) {
    fail(Exit::usage, "--steps is missing", "give --steps or --epochs");
  }
  resolve_threads(s);
  const int64_t budget = resolve_budget(s);
  SourceOptions source_options;
  source_options.image_size = s.image_size;
  source_options.channels = static_cast<int>(s.channels);
  source_options.memory_limit = budget / 2;
  const auto source = open_source(s.data, source_options);
  const DitConfig config = resolve_model(s, &source->info());
  TrainOptions options = resolve_training(s, config, &source->info());
  options.budget_bytes = budget;
  // The settings of a resumed run name its micro-batch; with another --batch, resuming is refused
  // below for that reason, not for this one.
  if (s.resume && s.micro_batch > s.batch) options.forced.micro_batch.reset();
  const PlannedRun planned =
      plan_fitting_run(run_spec(options, source.get()), machine_costs(options.offload));
  settle(s, planned.step.choices);
  options.settings = settings_toml("train", s);
  return train(options, *source, planned);
}

}  // namespace ebb
