#include <fmt/format.h>

#include <optional>

#include "api/resolve.h"
#include "base/error.h"
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

int run_train(Settings s) {
  need(s, "data");
  need(s, "out");
  if (!s.has("steps") && !s.has("epochs")) {
    fail(Exit::usage, "--steps is missing", "give --steps or --epochs");
  }
  const MeasuredMachine machine = resolve_machine(s);
  const int64_t budget = resolve_budget(s, machine);
  const Data data = resolve_data(s, s.data, budget, true);
  const DataInfo& info = inside(data).info();
  const DitConfig config = resolve_model(s, &info);
  say_default_model(s);
  TrainOptions options = resolve_training(s, config, &info);
  options.budget_bytes = budget;
  // The settings of a resumed run name its micro-batch; with another --batch, resuming is refused
  // below for that reason, not for this one.
  if (s.resume && s.decisions.micro_batch.value_or(0) > s.batch) {
    options.decisions.micro_batch.reset();
  }
  std::optional<TrainingPlan> plan = plan_with_folder(machine, options, data);
  plan->check_fits();
  options.fewer_pictures =
      afford_pictures(options, pictures_given(s), inside(*plan).planned, inside(machine));
  if (!options.fewer_pictures.empty()) {
    plan.reset();  // gone before the next is made
    plan = plan_with_folder(machine, options, data);
    plan->check_fits();
    settle_pictures(s, options);
  }
  settle(s, inside(*plan).planned.step.choices);
  make_absolute(s);
  options.settings = settings_toml("train", s);
  options.outlook = outlook_of(options, inside(*plan).planned, inside(machine));
  return train_watched(options, inside(data), inside(*plan).planned, inside(machine));
}

}  // namespace ebb
