// The table of solutions. Each row is measured by `ebb bench` in a process of its own, because the
// peak that counts is a process's.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "api/resolve.h"
#include "base/error.h"
#include "base/median.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/run_again.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "machine/process.h"
#include "plan/link.h"
#include "plan/techniques.h"

namespace ebb {

namespace {

using Words = std::vector<std::string>;
using nlohmann::ordered_json;

Words operator+(Words left, const Words& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// ---- rows --------------------------------------------------------------------------------------

struct Row {
  std::string technique, flags, kind, note;
  bool offloads = false;             // may use the directory that the user named
  bool clips = true;                 // as the baseline does; otherwise the training is another one
  std::vector<double> seconds = {};  // of a step, one of each round
  int64_t peak_bytes = 0;            // of the process, the largest seen
  bool refused = false;              // the machine cannot hold it

  bool measured() const { return !seconds.empty(); }
  double step_seconds() const { return median(seconds); }
};

// Every flag of a technique with its word, or with the one that rules it out; what changes numbers
// is ruled out by not being allowed.
Row row_of(const ComparedRow& compared, Exactness kind, int64_t batch) {
  Row row{compared.name, "", exactness_name(kind), compared.note};
  std::vector<std::pair<std::string, std::string>> words = compared.words;
  for (const Technique& t : techniques()) {
    if (!t.decide || t.of_ranks) continue;
    const auto given = std::find_if(words.begin(), words.end(),
                                    [&](const auto& each) { return each.first == t.flag; });
    const std::string off = t.off.empty() ? fmt::format("{}", batch) : t.off;
    const std::string word = given != words.end() ? given->second : off;
    if (given == words.end() && t.kind == Exactness::lossy) continue;
    if (given != words.end()) words.erase(given);
    row.flags += fmt::format("{}--{} {}", row.flags.empty() ? "" : " ", t.flag, word);
  }
  for (const auto& [flag, word] : words) {
    row.flags += fmt::format(" --{} {}", flag, word);
    if (flag == "clip") row.clips = false;
  }
  return row;
}

// Everything kept, each technique alone, and the useful pairs.
std::vector<Row> forced_rows(int64_t batch) {
  std::vector<Row> rows = {
      row_of({"everything kept", {}, "the baseline"}, Exactness::exact, batch)};
  for (const Technique& t : techniques()) {
    if (!t.rows) continue;
    for (const ComparedRow& row : t.rows(batch)) rows.push_back(row_of(row, t.kind, batch));
  }
  return rows;
}

// What is left of a model that was pruned, measured as the baseline is: everything kept.
std::vector<Row> pruned_rows(const DitConfig& config, int64_t batch) {
  const int64_t panel = device_with(0).panel();
  std::vector<BlockShape> thinner = config.blocks, fewer;
  for (BlockShape& shape : thinner) {
    shape.heads = (shape.heads + 1) / 2;
    shape.mlp = std::min(shape.mlp, (shape.mlp / 2 + panel - 1) / panel * panel);
  }
  for (size_t i = 0; i < config.blocks.size(); i += 2) fewer.push_back(config.blocks[i]);
  std::vector<Row> rows;
  const auto add = [&](const char* name, const std::string& flags, const char* how) {
    Row row = row_of({name, {}, fmt::format("another model: {}, and training to recover", how)},
                     Exactness::lossy, batch);
    row.flags += flags;
    rows.push_back(std::move(row));
  };
  const auto add_shapes = [&](const char* name, const std::vector<BlockShape>& blocks,
                              const char* how) {
    if (blocks == config.blocks) return;
    add(name, fmt::format(" --depth {} --shapes {}", blocks.size(), shapes_text(blocks)), how);
  };
  add_shapes("half of heads and MLP", thinner, "ebb prune --heads 0.5 --mlp 0.5");
  add_shapes("half of the blocks", fewer, "ebb prune --blocks");
  if (density_of(config) == 1) {
    add("half of the weights", " --density 0.5", "ebb prune --weights 0.5");
  }
  return rows;
}

// ---- measuring ---------------------------------------------------------------------------------

// One line that is rewritten on a terminal, plain lines elsewhere; always on stderr.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (terminal_) fmt::print(stderr, "\r\033[K");
  }
  void show(const std::string& text) const {
    fmt::print(stderr, "{}{} ...{}", terminal_ ? "\r\033[K" : "", text, terminal_ ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
};

class Comparison {
 public:
  // `offload`: a directory, or nothing. `machine`: a file that describes the one to plan for, or
  // nothing.
  Comparison(Words model, const DitConfig& config, int64_t batch, std::string offload,
             const std::string& machine)
      : model_(std::move(model) + Words{fmt::format("--batch={}", batch)}),
        offload_(std::move(offload)),
        machine_(machine.empty() ? Words() : Words{"--machine=" + machine}),
        rows_(forced_rows(batch)) {
    for (Row& row : pruned_rows(config, batch)) rows_.push_back(std::move(row));
  }

  void run(int64_t rounds) {
    const ProgressLine progress;
    progress.show("planning");
    add_planner_rows();
    for (int64_t round = 1; round <= rounds; ++round) {
      for (size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i].refused) continue;
        const std::string which =
            rounds > 1 ? fmt::format("round {}/{}, ", round, rounds) : std::string();
        progress.show(fmt::format("{}{}/{} {}", which, i + 1, rows_.size(), rows_[i].technique));
        measure(rows_[i]);
      }
    }
    if (!rows_[0].measured()) {
      rows_[0].note += fmt::format("; its plan of {} is what the others save from",
                                   format_size(baseline_plan_bytes_));
    }
  }

  const std::vector<Row>& rows() const { return rows_; }
  // Codes for gradients between two ranks: planned, since nothing here is sent.
  ordered_json codes(int64_t batch) const {
    return batch > 1 ? plan("--ranks=data=2")["codes"] : ordered_json::array();
  }
  // What is saved is saved from this: measured, or planned where the machine cannot hold it.
  int64_t baseline_bytes() const {
    return rows_[0].measured() ? rows_[0].peak_bytes : baseline_plan_bytes_;
  }

 private:
  Words words_of(const std::string& flags, bool offloads) const {
    return model_ + (flags.empty() ? Words() : split(flags, ' ')) +
           (offloads ? Words{"--offload=" + offload_} : Words());
  }

  // Of a machine without limits; a budget in `flags` comes later and wins.
  ordered_json plan(const std::string& flags, bool offloads = false) const {
    const Ended ended =
        run_again(Words{"plan", "--json", "--sample-every=0", "--clip=1", "--memory=1024T"} +
                  machine_ + words_of(flags, offloads));
    if (ended.code != 0) fail_like(ended, "planning");
    return ordered_json::parse(ended.out);
  }

  // From the floor to where nothing has to be saved.
  void add_planner_rows() {
    baseline_plan_bytes_ = plan(rows_[0].flags)["process_bytes"].get<int64_t>();
    const auto most = static_cast<double>(baseline_plan_bytes_);
    // Processes differ a little in what they take outside the arena.
    const double least = 1.01 * plan("")["floor_bytes"].get<double>();
    for (const double part : {0.0, 0.25, 0.5, 0.75}) {
      add_planner_row(least + part * std::max(0.0, most - least));
    }
    const std::string all = " --allow bf16,adam8,ema16";
    add_planner_row(1.01 * plan(all.substr(1))["floor_bytes"].get<double>(), all);
    if (offload_.empty()) return;
    const double away = 1.01 * plan("", true)["floor_bytes"].get<double>();
    for (const double part : {0.0, 0.5}) {
      add_planner_row(away + part * std::max(0.0, least - away), "", true);
    }
  }

  void add_planner_row(double budget, const std::string& allowed = "", bool offloads = false) {
    const double mib = std::ceil(budget / (1 << 20) * 10) / 10;
    const auto bytes = static_cast<int64_t>(mib * (1 << 20));
    Row row{"planner within " + format_size(bytes), fmt::format("--memory {:.1f}M{}", mib, allowed),
            "exact", ""};
    row.offloads = offloads;
    if (row.flags == rows_.back().flags) return;  // a model so small that budgets hardly differ
    const ordered_json planned = plan(row.flags, offloads);
    for (const ordered_json& use : planned["techniques"]) {
      row.note += fmt::format("{}{} {}", row.note.empty() ? "" : ", ",
                              use["name"].get<std::string>(), use["setting"].get<std::string>());
      row.kind = weaker(row.kind, use["class"]);
    }
    if (bytes > available_memory_bytes() / 5 * 4) {  // `bench` would only warn, and then take it
      row.refused = true;
      row.note = "more than this machine has available";
    }
    rows_.push_back(std::move(row));
  }

  static std::string weaker(const std::string& a, const std::string& b) {
    for (const char* kind : {"lossy", "rounding"}) {
      if (a == kind || b == kind) return kind;
    }
    return "exact";
  }

  void measure(Row& row) {
    const Ended ended =
        run_again(Words{"bench", "--json", "--rounds=1"} + words_of(row.flags, row.offloads));
    if (ended.code == static_cast<int>(Exit::budget)) {
      row.refused = true;
      row.note = error_and_hint(ended).first;
      return;
    }
    if (ended.code != 0) fail_like(ended, row.technique);
    const ordered_json bench = ordered_json::parse(ended.out);
    row.seconds.push_back(bench["step_seconds"]);
    row.peak_bytes = std::max<int64_t>(row.peak_bytes, bench["process_peak_bytes"]);
  }

  const Words model_;
  const std::string offload_;
  const Words machine_;
  std::vector<Row> rows_;
  int64_t baseline_plan_bytes_ = 0;
};

// ---- the answer --------------------------------------------------------------------------------

// What a row is worth next to the baseline; nothing of a row that was not measured.
struct Worth {
  std::optional<int64_t> saved_bytes;
  std::optional<double> saved_percent, slowdown;  // slowdown: 1.2 takes a fifth longer
};

Worth worth(const Comparison& comparison, const Row& row) {
  Worth made;
  if (!row.measured()) return made;
  const Row& baseline = comparison.rows()[0];
  made.saved_bytes = comparison.baseline_bytes() - row.peak_bytes;
  made.saved_percent = 100.0 * static_cast<double>(*made.saved_bytes) /
                       static_cast<double>(comparison.baseline_bytes());
  if (baseline.measured()) made.slowdown = row.step_seconds() / baseline.step_seconds();
  return made;
}

void print_json(const Comparison& comparison, const std::string& model, int64_t batch) {
  const auto or_null = [](const auto& value) { return value ? ordered_json(*value) : nullptr; };
  ordered_json j;
  j["model"] = model;
  j["batch"] = batch;
  j["rows"] = ordered_json::array();
  for (const Row& row : comparison.rows()) {
    const Worth w = worth(comparison, row);
    ordered_json r;
    r["technique"] = row.technique;
    r["process_peak_bytes"] = row.measured() ? ordered_json(row.peak_bytes) : nullptr;
    r["saved_bytes"] = or_null(w.saved_bytes);
    r["saved_percent"] = or_null(w.saved_percent);
    r["step_seconds"] = row.measured() ? ordered_json(row.step_seconds()) : nullptr;
    r["slowdown"] = or_null(w.slowdown);
    r["class"] = row.kind;
    r["flags"] = row.flags + (row.offloads ? " --offload DIR" : "");
    r["note"] = row.note;
    j["rows"].push_back(std::move(r));
  }
  j["codes"] = comparison.codes(batch);
  fmt::print("{}\n", j.dump(2));
}

// The measured row with the smallest peak among those that train as the baseline does.
const Row* smallest(const Comparison& comparison, double slowdown_limit) {
  const Row* best = nullptr;
  for (const Row& row : comparison.rows()) {
    if (!row.measured() || !row.clips || row.kind == "lossy") continue;
    if (worth(comparison, row).slowdown.value_or(0) >= slowdown_limit) continue;
    if (best == nullptr || row.peak_bytes < best->peak_bytes) best = &row;
  }
  return best;
}

void print_advice(const Comparison& comparison) {
  const Row* least = smallest(comparison, INFINITY);
  if (least == nullptr) {
    fmt::print("\nNo row fits this machine: choose a smaller model or batch.\n");
    return;
  }
  fmt::print("\nLeast memory: {} ({}).", least->technique, format_size(least->peak_bytes));
  if (comparison.rows()[0].measured()) {
    const Row* quick = smallest(comparison, 1.05);  // the baseline itself is one
    fmt::print(" Least memory at less than 5 % slowdown: {} ({}).", quick->technique,
               format_size(quick->peak_bytes));
  }
  fmt::print(" Add `--clip 1` to the flags for `ebb train`: the rows were measured with it.\n");
}

void print_codes(const ordered_json& codes) {
  if (codes.empty()) return;
  fmt::print("\nPlanned, for two ranks with a link that was not measured:\n\n");
  fmt::print("| gradients sent as | a step sends | pays on links |\n|---|---:|---|\n");
  for (const ordered_json& code : codes) {
    const ordered_json& below = code["pays_below_bits_per_second"];
    fmt::print("| `--exchange {}` | {} | {} |\n", code["code"].get<std::string>(),
               format_size(code["sent_bytes"]),
               below.is_null() ? "always"
               : below == 0    ? "never"
                               : "below " + rate_words(below));
  }
}

void print_markdown(const Comparison& comparison, const std::string& model, int64_t batch) {
  fmt::print("{} at batch {}, measured on this machine\n\n", model, batch);
  fmt::print("| technique | peak | saved | saved % | step | slowdown | class | flags | note |\n");
  fmt::print("|---|---:|---:|---:|---:|---:|---|---|---|\n");
  for (const Row& row : comparison.rows()) {
    const Worth w = worth(comparison, row);
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | `{}` | {} |\n", row.technique,
               row.measured() ? format_size(row.peak_bytes) : "-",
               w.saved_bytes ? format_size(*w.saved_bytes) : "-",
               w.saved_percent ? fmt::format("{:.1f}", *w.saved_percent) : "-",
               row.measured() ? format_seconds(row.step_seconds()) : "-",
               w.slowdown ? fmt::format("{:.2f}x", *w.slowdown) : "-", row.kind,
               row.flags + (row.offloads ? " --offload DIR" : ""), row.note);
  }
  print_advice(comparison);
  print_codes(comparison.codes(batch));
}

// What the user said of the model and the threads, for the processes that measure.
Words passed_on(const Settings& s) {
  Words words;
  for (const Setting& setting : settings_of("compare")) {
    static const std::set<std::string> kOwn = {"batch", "rounds", "json", "offload", "machine"};
    if (!s.has(setting.name) || kOwn.contains(setting.name)) continue;
    std::string value = setting.get(s);  // as TOML: texts are quoted
    if (value.starts_with('"')) value = value.substr(1, value.size() - 2);
    words.push_back(fmt::format("--{}={}", setting.name, value));
  }
  return words;
}

}  // namespace

int run_compare(Settings s) {
  resolve_threads(s);
  const Words model = passed_on(s);
  const DitConfig config = resolve_model(s, nullptr);  // refuses a wrong model before any process
  const std::string label = model_label(s, config);
  Comparison comparison(model, config, s.batch, resolve_offload(s).string(), s.machine);
  comparison.run(s.rounds);
  if (s.json) {
    print_json(comparison, label, s.batch);
  } else {
    print_markdown(comparison, label, s.batch);
  }
  return 0;
}

}  // namespace ebb
