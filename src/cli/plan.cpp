#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/ranks.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "plan/fastest_place.h"
#include "report/rank_timeline.h"

namespace ebb {

namespace {

std::optional<Data> data_of(const Settings& s, int64_t budget) {
  if (!s.has("data")) return std::nullopt;
  return resolve_data(s, s.data, budget, false);
}

TrainOptions options_of(Settings& s, const Source* source, int64_t budget) {
  const DataInfo* info = source != nullptr ? &source->info() : nullptr;
  const DitConfig config = resolve_model(s, info);
  TrainOptions options = resolve_training(s, config, info);
  options.budget_bytes = budget;
  options.step.place = resolve_place(s, nullptr);
  options.step.leaves = resolve_leaves(s, options.step.place);
  return options;
}

// Of the plan, into the files that were asked for.
void write_files(const Settings& s, const TrainingPlan::Impl& plan) {
  const PlannedRun& planned = plan.planned;
  if (!s.csv.empty()) {
    write_file_atomically(s.csv, plan_csv(planned.step_plan(), planned.plans.limits));
  }
  if (!s.timeline.empty()) {
    write_file_atomically(s.timeline, plan_timeline_svg(plan.spec.name, plan.spec.config, planned,
                                                        inside(plan.machine)));
  }
}

int print_largest(const RunSpec& spec, const LargestBatch& largest, bool json) {
  if (json) {
    nlohmann::ordered_json j;
    j["model"] = spec.name;
    j["budget_bytes"] = spec.budget_bytes;
    j["largest_batch_at_full_speed"] = largest.full_speed;
    j["largest_batch_at_any_speed"] = largest.any_speed;
    fmt::print("{}\n", j.dump(2));
  } else {
    fmt::print(
        "{} within {}: batch {} with nothing computed twice, {} at any speed\n", spec.name,
        format_size(spec.budget_bytes), largest.full_speed,
        largest.any_speed == kMostBatch ? std::string("any") : std::to_string(largest.any_speed));
  }
  return largest.any_speed > 0 ? 0 : static_cast<int>(Exit::budget);
}

}  // namespace

int run_plan(Settings s) {
  const MeasuredMachine machine = resolve_machine(s);
  const bool max = s.batch == 0;
  if (max) s.batch = 1;
  for (const char* file : {"csv", "timeline"}) {
    if (!max || !s.has(file)) continue;
    fail(Exit::usage, fmt::format("--{} contradicts --batch max, which makes many plans", file),
         "give it with the batch that is found");
  }
  const int64_t budget = resolve_budget(s, machine);
  const std::optional<Data> data = data_of(s, budget);
  const Source* source = data ? &inside(*data) : nullptr;
  TrainOptions options = options_of(s, source, budget);
  if (layout_is_open(s, options.step.place)) {
    const auto spec_of = [&](const RankPlace& place) {
      check_parts(s, place);
      TrainOptions changed = options;
      changed.step.place = place;
      return run_spec(changed, source);
    };
    options.step.place = fastest_place(options.step.place, spec_of, inside(machine));
  }
  if (!s.json) say_default_model(s);
  if (max) {
    const auto with_batch = [&](int64_t batch) {
      Settings changed = s;
      changed.batch = batch;
      return run_spec(options_of(changed, source, budget), source);
    };
    return print_largest(run_spec(options, source), largest_batch(with_batch, inside(machine)),
                         s.json);
  }
  // What a smaller budget would do takes a plan of every rank for each way.
  constexpr int kFewRanks = 8;
  const Floor floor = options.step.place.ranks() <= kFewRanks ? Floor::known : Floor::left_out;
  TrainingPlan plan = plan_with_folder(machine, options, data, floor);
  const std::string fewer =
      afford_pictures(options, pictures_given(s), inside(plan).planned, inside(machine));
  if (!fewer.empty()) {
    options.fewer_pictures = fewer;
    plan = plan_with_folder(machine, options, data, floor);
  }
  fmt::print("{}", s.json ? plan.json() + "\n" : plan.text());
  write_files(s, inside(plan));
  if (!plan.fits()) std::fflush(stdout);
  plan.check_fits();
  return 0;
}

}  // namespace ebb
