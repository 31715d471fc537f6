#include <fmt/format.h>

#include <optional>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/going_on.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "cli/watched.h"

namespace ebb {

void need(const Settings& settings, const std::string& name) {
  if (settings.has(name)) return;
  fail(Exit::usage, fmt::format("--{} is missing", name),
       fmt::format("ebb {} --help shows an example", settings.verb));
}

namespace {

// A run can be resumed from any directory: its settings name places that do not depend on one.
void make_absolute(Settings& s) {
  for (std::string Settings::*place : {&Settings::data, &Settings::offload}) {
    if (!(s.*place).empty()) s.*place = std::filesystem::absolute(s.*place).lexically_normal();
  }
}

}  // namespace

namespace {

// Whatever a run cannot do without is there, as a flag or as its checkpoint says it.
void need_settings(const Settings& s) {
  need(s, "out");
  const bool lasts = s.has("steps") || s.has("epochs");
  if (!s.begin_from.empty() && s.recorded.empty() && (!s.has("data") || !lasts)) {
    fail(Exit::usage,
         fmt::format("--from: {} was written through the library and has no settings of a run: "
                     "--{} is missing",
                     printable(s.begin_from), s.has("data") ? "steps" : "data"),
         "give --data and --steps, and --lr, --clip and the like where the defaults are not those "
         "of its run");
  }
  need(s, "data");
  if (!lasts) fail(Exit::usage, "--steps is missing", "give --steps or --epochs");
}

TrainOptions options_of(Settings& s, const DataInfo& info, const Origin* origin, int64_t budget) {
  const DitConfig config = resolve_model(s, &info);
  if (origin == nullptr) say_default_model(s);
  TrainOptions options = resolve_training(s, config, &info);
  options.budget_bytes = budget;
  if (origin != nullptr) agree(options, *origin);
  return options;
}

}  // namespace

int run_train(Settings s) {
  need_settings(s);
  const MeasuredMachine measured = resolve_machine(s);
  const Machine& machine = inside(measured);
  const int64_t budget = resolve_budget(s, measured);
  std::optional<Origin> origin = open_origin(s, budget);
  if (origin) follow(s, *origin);
  const Data data = resolve_data(s, s.data, budget, true);
  const Source& source = inside(data);
  TrainOptions options = options_of(s, source.info(), origin ? &*origin : nullptr, budget);
  origin.reset();  // its header: nothing is held twice
  PlannedRun planned = plan_fitting_run(run_spec(options, &source), machine);
  options.fewer_pictures = afford_pictures(options, pictures_given(s), planned, machine);
  if (!options.fewer_pictures.empty()) {
    planned = {};  // gone before the next is made
    planned = plan_fitting_run(run_spec(options, &source), machine);
    settle_pictures(s, options);
  }
  settle(s, planned.step.choices);
  options.decisions = s.decisions;  // also where the run is planned anew
  make_absolute(s);
  options.settings = settings_toml("train", s);
  options.outlook = outlook_of(options, planned, machine);
  return train_watched(options, source, std::move(planned), machine);
}

}  // namespace ebb
