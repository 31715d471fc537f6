#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "data/loader.h"
#include "formats/atomic_file.h"
#include "kernels/cpu/device.h"
#include "plan/cost.h"
#include "train/budget.h"

namespace ebb {

namespace {

struct Answer {
  std::string model;
  DitConfig config;
  int64_t batch, budget_bytes, outside_bytes;
  PlanSet plans;
  double seconds;

  const Plan& step() const { return plans.plans[0]; }
  int64_t process_bytes() const { return plans.arena_bytes + outside_bytes; }
  bool fits() const { return process_bytes() <= budget_bytes; }
};

Answer make_answer(Settings& s) {
  resolve_threads(s);
  std::unique_ptr<Source> source;
  if (s.has("data")) {
    SourceOptions options;
    options.image_size = s.image_size;
    options.channels = static_cast<int>(s.channels);
    options.verify = false;
    source = open_source(s.data, options);
  }
  const DataInfo* info = source ? &source->info() : nullptr;
  const DitConfig config = resolve_model(s, info);
  const TrainOptions options = resolve_training(s, config, info);
  const int64_t loader_bytes =
      source ? Loader::memory_bytes(
                   *source, {options.seed, s.batch, options.flip, options.loader_threads, 2})
             : 0;
  auto programs = training_programs(options, loader_bytes);
  const int64_t outside = measure_outside_bytes(programs);
  Answer answer{options.name,
                config,
                s.batch,
                resolve_budget(s),
                outside,
                make_plans(std::move(programs)),
                0};
  answer.seconds = predicted_seconds(answer.step().program, CostModel());
  return answer;
}

// The arena's ledger at the peak. Where the sampler needs more than the step, the rest is its own.
nlohmann::ordered_json ledger_json(const Answer& a) {
  nlohmann::ordered_json ledger;
  const Ledger& at_peak = a.step().ledger;
  for (int i = 0; i < kPurposes; ++i) {
    ledger[purpose_name(static_cast<Purpose>(i))] = at_peak.purpose[i];
  }
  ledger["gap"] = a.plans.arena_bytes - at_peak.total() + at_peak.gap;
  return ledger;
}

void print_json(const Answer& a) {
  nlohmann::ordered_json j;
  j["model"] = a.model;
  j["params"] = parameter_count(a.config);
  j["batch"] = a.batch;
  j["micro_batch"] = a.batch;
  j["accumulation"] = 1;
  j["budget_bytes"] = a.budget_bytes;
  j["fits"] = a.fits();
  j["process_bytes"] = a.process_bytes();
  j["arena_bytes"] = a.plans.arena_bytes;
  j["outside_bytes"] = a.outside_bytes;
  j["floor_bytes"] = a.process_bytes();
  j["ledger"] = ledger_json(a);
  for (const auto& [layer, bytes] : a.step().ledger.layer) {
    for (int i = 0; i < kPurposes; ++i) {
      if (bytes[i] > 0) j["layers"][layer][purpose_name(static_cast<Purpose>(i))] = bytes[i];
    }
  }
  j["techniques"] = nlohmann::ordered_json::array();
  j["predicted_step_seconds"] = a.seconds;
  j["step_flops"] = a.step().program.flops();
  fmt::print("{}\n", j.dump(2));
}

// "block0 .. block11" share a row when they hold the same bytes.
void print_layers(const Ledger& ledger) {
  fmt::print("  {:<20}", "by layer, each");
  for (int i = 0; i < kPurposes; ++i) {
    if (ledger.purpose[i] > 0) fmt::print(" {:>10}", purpose_name(static_cast<Purpose>(i)));
  }
  fmt::print("\n");
  std::vector<std::pair<std::string, std::array<int64_t, kPurposes>>> rows(ledger.layer.begin(),
                                                                           ledger.layer.end());
  const auto number = [](const std::string& layer) {
    return layer.rfind("block", 0) == 0 ? std::atoll(layer.c_str() + 5) : -1;
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const auto& x, const auto& y) { return number(x.first) < number(y.first); });
  for (size_t first = 0, last = 0; first < rows.size(); first = last + 1) {
    last = first;
    while (number(rows[first].first) >= 0 && last + 1 < rows.size() &&
           rows[last + 1].second == rows[first].second) {
      ++last;
    }
    fmt::print("  {:<20}",
               last == first ? rows[first].first : rows[first].first + " .. " + rows[last].first);
    for (int i = 0; i < kPurposes; ++i) {
      if (ledger.purpose[i] > 0) fmt::print(" {:>10}", format_size(rows[first].second[i]));
    }
    fmt::print("\n");
  }
}

void print_table(const Answer& a) {
  const Plan& step = a.step();
  fmt::print("{}: {} parameters, {} tokens, batch {}\n\n", a.model, parameter_count(a.config),
             a.config.tokens(), a.batch);
  fmt::print("  {:<12} {:>12}\n", "at the peak", "bytes");
  for (int i = 0; i < kPurposes; ++i) {
    if (step.ledger.purpose[i] == 0) continue;
    fmt::print("  {:<12} {:>12}\n", purpose_name(static_cast<Purpose>(i)),
               format_size(step.ledger.purpose[i]));
  }
  const int64_t gap = a.plans.arena_bytes - step.ledger.total() + step.ledger.gap;
  if (gap > 0) fmt::print("  {:<12} {:>12}\n", "gap", format_size(gap));
  fmt::print("  {:<12} {:>12}   code, libraries, threads, compiled kernels\n", "outside",
             format_size(a.outside_bytes));
  fmt::print("  {:<12} {:>12}   of {}: {}\n\n", "process", format_size(a.process_bytes()),
             format_size(a.budget_bytes), a.fits() ? "fits" : "does not fit");
  print_layers(step.ledger);
  fmt::print("\n  the peak is at {}\n", step.program.ops[step.peak_op].name);
  fmt::print("  predicted step: {} ({:.1f} images/s)\n", format_seconds(a.seconds),
             static_cast<double>(a.batch) / a.seconds);
}

}  // namespace

int run_plan(Settings s) {
  const Answer answer = make_answer(s);
  if (s.json) {
    print_json(answer);
  } else {
    print_table(answer);
  }
  if (!s.csv.empty()) write_file_atomically(s.csv, plan_csv(answer.step()));
  if (answer.fits()) return 0;
  check_budget(answer.plans.arena_bytes, answer.outside_bytes, answer.budget_bytes,
               fmt::format("{} at --batch {}", answer.model, answer.batch),
               "choose a smaller --batch or model, or a larger --memory");
  return static_cast<int>(Exit::budget);
}

}  // namespace ebb
