#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "train/calibration.h"
#include "train/outlook.h"
#include "train/plan_text.h"

namespace ebb {

namespace {

struct Answer {
  RunSpec spec;
  PlannedRun run;
  Outlook outlook;
  std::string fewer_pictures = {};

  const Plan& step() const { return run.step_plan(); }
  std::vector<Part> parts() const {
    return micro_batches(run.step.batch, run.step.choices.micro_batch);
  }
  // Where the sampler needs more than the step, the rest is its own.
  int64_t gap() const { return run.plans.arena_bytes - step().ledger.total() + step().ledger.gap; }
};

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

// ---- for programs ------------------------------------------------------------------------------

nlohmann::ordered_json techniques_json(const Answer& a) {
  auto list = nlohmann::ordered_json::array();
  for (const TechniqueUse& use : techniques_in_use(a.spec.config, a.run.step)) {
    list.push_back({{"name", use.name}, {"setting", use.setting}, {"class", use.kind}});
  }
  return list;
}

nlohmann::ordered_json blocks_json(const Answer& a) {
  auto list = nlohmann::ordered_json::array();
  const auto choices = block_choices(a.run.step.choices.schedule, a.spec.config.depth());
  for (const BlockChoice& choice : choices) {
    list.push_back({{"recompute", choice.keep.recomputed()}, {"forwards", choice.forwards}});
  }
  return list;
}

nlohmann::ordered_json peaks_json(const Answer& a) {
  nlohmann::ordered_json peaks;
  const auto each = purpose_peaks(a.step());
  for (int i = 0; i < kPurposes; ++i) {
    if (each[i].bytes == 0) continue;
    peaks[purpose_name(static_cast<Purpose>(i))] = {{"bytes", each[i].bytes},
                                                    {"op", a.step().program.ops[each[i].op].name}};
  }
  return peaks;
}

void print_json(const Answer& a) {
  nlohmann::ordered_json j;
  j["model"] = a.spec.name;
  j["params"] = parameter_count(a.spec.config);
  j["batch"] = a.run.step.batch;
  j["micro_batch"] = a.parts()[0].size;
  j["accumulation"] = micro_batch_count(a.run.step.batch, a.run.step.choices.micro_batch);
  j["budget_bytes"] = a.spec.budget_bytes;
  j["fits"] = a.run.fits;
  j["process_bytes"] = a.run.process_bytes();
  j["disk_bytes"] = a.run.plans.disk_bytes;
  j["arena_bytes"] = a.run.plans.arena_bytes;
  j["outside_bytes"] = a.run.outside_bytes;
  j["floor_bytes"] = a.run.floor_bytes;
  for (int i = 0; i < kPurposes; ++i) {
    j["ledger"][purpose_name(static_cast<Purpose>(i))] = a.step().ledger.purpose[i];
  }
  j["ledger"]["gap"] = a.gap();
  for (const auto& [layer, bytes] : a.step().ledger.layer) {
    for (int i = 0; i < kPurposes; ++i) {
      if (bytes[i] > 0) j["layers"][layer][purpose_name(static_cast<Purpose>(i))] = bytes[i];
    }
  }
  j["techniques"] = techniques_json(a);
  j["blocks"] = blocks_json(a);
  j["peak_op"] = a.step().program.ops[a.step().peak_op].name;
  j["peaks"] = peaks_json(a);
  j["predicted_step_seconds"] = a.run.seconds;
  j["step_flops"] = a.step().program.flops();
  const auto known = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  j["total_seconds"] = known(a.outlook.total_seconds());
  j["first_picture_seconds"] = known(a.outlook.first_picture_seconds());
  j["first_checkpoint_seconds"] = known(a.outlook.first_checkpoint_seconds());
  j["drawing_seconds"] = a.outlook.drawing_seconds;
  j["checkpoint_bytes"] = a.outlook.checkpoint_bytes;
  j["disk_total_bytes"] = known(a.outlook.disk_bytes());
  fmt::print("{}\n", j.dump(2));
}

// ---- for people --------------------------------------------------------------------------------

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

// What the peak is made of, and what would make it smaller.
void print_cause(const Answer& a) {
  const std::vector<PeakShare> shares = peak_shares(a.step());
  std::array<int64_t, kPurposes> purpose = a.step().ledger.purpose;
  const auto largest = std::max_element(purpose.begin(), purpose.end()) - purpose.begin();
  const auto percent = [&](int64_t bytes) {
    return 100.0 * static_cast<double>(bytes) / static_cast<double>(a.run.plans.arena_bytes);
  };
  fmt::print(
      "\n  fullest at {}: {:.0f} % of it is {}; the largest part of a layer is {} of {} ({})\n",
      a.step().program.ops[a.step().peak_op].name, percent(purpose[largest]),
      purpose_name(static_cast<Purpose>(largest)), purpose_name(shares[0].purpose), shares[0].layer,
      format_size(shares[0].bytes));
  if (a.run.floor_bytes < a.run.process_bytes()) {
    fmt::print("  a smaller --memory also works, down to {}; steps then take longer\n",
               format_size(a.run.floor_bytes));
  }
}

// What the planner is not allowed to use, and how far down it would reach.
void print_lossy(const Answer& a, const CostModel& costs) {
  std::string line;
  for (const WayOut& way : lossy_ways_out(a.spec, costs)) {
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", way.how, format_size(way.floor_bytes));
  }
  if (!line.empty()) fmt::print("  where rounding is allowed, down to: {}\n", line);
}

void print_table(const Answer& a, const CostModel& costs) {
  const Plan& step = a.step();
  const auto peaks = purpose_peaks(step);
  fmt::print("{}: {} parameters, {} tokens, batch {} = {} x {}{}\n\n", a.spec.name,
             parameter_count(a.spec.config), a.spec.config.tokens(), a.run.step.batch,
             a.parts()[0].count, a.parts()[0].size,
             a.parts().size() > 1 ? fmt::format(" + {}", a.parts()[1].size) : "");
  fmt::print("  {:<12} {:>12} {:>12}   {}\n", "", "at the peak", "its own peak", "at");
  for (int i = 0; i < kPurposes; ++i) {
    if (peaks[i].bytes == 0) continue;
    const bool resident = peaks[i].op == 0 && peaks[i].bytes == step.ledger.purpose[i];
    fmt::print("  {:<12} {:>12} {:>12}   {}\n", purpose_name(static_cast<Purpose>(i)),
               format_size(step.ledger.purpose[i]), format_size(peaks[i].bytes),
               resident ? "all the time" : step.program.ops[peaks[i].op].name);
  }
  if (a.gap() > 0) fmt::print("  {:<12} {:>12}\n", "gap", format_size(a.gap()));
  fmt::print("  {:<12} {:>12}   code, libraries, threads, a reserve\n", "outside",
             format_size(a.run.outside_bytes));
  fmt::print("  {:<12} {:>12}   of {}: {}\n\n", "process", format_size(a.run.process_bytes()),
             format_size(a.spec.budget_bytes), a.run.fits ? "fits" : "does not fit");
  if (a.run.plans.disk_bytes > 0) {
    fmt::print("  {:<12} {:>12}   in --offload\n\n", "on disk",
               format_size(a.run.plans.disk_bytes));
  }
  print_layers(step.ledger);
  print_cause(a);
  print_lossy(a, costs);
  fmt::print("\n");
  print_blocks(a.spec.config, a.run.step.choices.schedule);
  fmt::print("  ");
  print_techniques(a.spec.config, a.run);
  fmt::print("  {} predicted\n",
             format_rate(static_cast<double>(a.run.step.batch) / a.run.seconds));
  print_outlook(a.outlook, 0, "  ");
  if (!a.fewer_pictures.empty()) fmt::print("  {}\n", a.fewer_pictures);
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
    fmt::print("{} within {}: batch {} with nothing computed twice, {} at any speed\n", spec.name,
               format_size(spec.budget_bytes), largest.full_speed, largest.any_speed);
  }
  return largest.any_speed > 0 ? 0 : static_cast<int>(Exit::budget);
}

}  // namespace

int run_plan(Settings s) {
  resolve_threads(s);
  const bool max = s.batch == 0;
  if (max) s.batch = 1;
  const int64_t budget = resolve_budget(s);
  const auto source = data_of(s, budget);
  TrainOptions options = options_of(s, source.get(), budget);
  if (!s.json) say_default_model(s);
  Answer answer{run_spec(options, source.get()), {}, {}};
  const CostModel costs = machine_costs(resolve_offload(s));
  if (max) {
    const auto with_batch = [&](int64_t batch) {
      Settings changed = s;
      changed.batch = batch;
      return run_spec(options_of(changed, source.get(), budget), source.get());
    };
    return print_largest(answer.spec, largest_batch(with_batch, costs), s.json);
  }
  answer.run = plan_run_and_floor(answer.spec, costs);
  answer.fewer_pictures = afford_pictures(options, pictures_given(s), answer.run, costs);
  if (!answer.fewer_pictures.empty()) {
    answer.spec = run_spec(options, source.get());
    answer.run = plan_run_and_floor(answer.spec, costs);
  }
  answer.outlook = outlook_of(options, answer.run, costs);
  if (s.json) {
    print_json(answer);
  } else {
    print_table(answer, costs);
  }
  if (!s.csv.empty()) write_file_atomically(s.csv, plan_csv(answer.step()));
  if (!answer.run.fits) {
    std::fflush(stdout);
    refuse_budget(answer.spec, answer.run, costs);
  }
  return 0;
}

}  // namespace ebb
