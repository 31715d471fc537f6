#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "report/plan_report.h"

namespace ebb {

namespace {

std::unique_ptr<Source> data_of(const Settings& s, int64_t budget) {
  if (!s.has("data")) return nullptr;
  SourceOptions options = resolve_source(s, budget);
  options.verify = false;
  return open_source(s.data, options);
}

TrainOptions options_of(Settings& s, const Source* source, int64_t budget) {
  const DataInfo* info = source != nullptr ? &source->info() : nullptr;
  const DitConfig config = resolve_model(s, info);
  TrainOptions options = resolve_training(s, config, info);
  options.budget_bytes = budget;
  return options;
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
  const Machine machine = resolve_machine(s);
  const bool max = s.batch == 0;
  if (max) s.batch = 1;
  const int64_t budget = resolve_budget(s, machine);
  const auto source = data_of(s, budget);
  TrainOptions options = options_of(s, source.get(), budget);
  if (!s.json) say_default_model(s);
  RunSpec spec = run_spec(options, source.get());
  if (max) {
    const auto with_batch = [&](int64_t batch) {
      Settings changed = s;
      changed.batch = batch;
      return run_spec(options_of(changed, source.get(), budget), source.get());
    };
    return print_largest(spec, largest_batch(with_batch, machine), s.json);
  }
  PlannedRun planned = plan_run_and_floor(spec, machine);
  const std::string fewer = afford_pictures(options, pictures_given(s), planned, machine);
  if (!fewer.empty()) {
    spec = run_spec(options, source.get());
    planned = plan_run_and_floor(spec, machine);
  }
  PlanReport report =
      describe(spec.name, spec.config, planned, budget, outlook_of(options, planned, machine));
  report.fewer_pictures = fewer;
  if (s.json) {
    fmt::print("{}\n", report_json(report));
  } else {
    report.lossy_ways = lossy_ways_out(spec, machine);
    fmt::print("{}", report_text(report));
  }
  if (!s.csv.empty()) {
    write_file_atomically(s.csv, plan_csv(planned.step_plan(), planned.plans.limits));
  }
  if (!planned.fits) {
    std::fflush(stdout);
    refuse_budget(spec, planned, machine);
  }
  return 0;
}

}  // namespace ebb
