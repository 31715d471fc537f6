#include <fmt/format.h>

#include <filesystem>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/checkpoint_of.h"
#include "cli/prune_report.h"
#include "cli/prune_scores.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "prune/compensation.h"
#include "prune/mask.h"
#include "prune/selection.h"
#include "prune/surgery.h"
#include "state/checkpoint.h"
#include "train/resume.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

bool has_structures(const Settings& s) {
  return s.prune_heads.given() || s.prune_mlp.given() || s.prune_blocks.given();
}
bool has_target(const Settings& s) { return s.has("params") || s.has("memory"); }

[[noreturn]] void refuse_unused(const Settings& s, const char* name, const std::string& why) {
  fail(Exit::usage, fmt::format("{}: {}", s.given.at(name), why), "leave it out");
}

void check_flags(const Settings& s) {
  need(s, "from");
  if (!s.dry_run) need(s, "out");
  if (s.has("mask")) {
    for (const char* name : {"heads", "mlp", "blocks", "weights", "params", "memory", "by", "scope",
                             "seed", "data", "samples", "no-compensation"}) {
      if (s.has(name)) refuse_unused(s, name, "--mask says all that is to go");
    }
    return;
  }
  const bool structures = has_structures(s) || has_target(s), weights = s.prune_weights.given();
  if (!structures && !weights) {
    fail(Exit::usage, "prune: what is to go?",
         "give some of --heads, --mlp, --blocks, --weights, --params, --memory, or --mask");
  }
  if (!structures) {
    for (const char* name : {"by", "seed", "data", "samples", "no-compensation"}) {
      if (s.has(name)) refuse_unused(s, name, "single weights go by their magnitude");
    }
    return;
  }
  check_score_flags(s);
  if (weights && has_target(s) && s.scope == "model") {
    fail(Exit::usage,
         "--weights contradicts --scope model where a target is given: what each matrix keeps is "
         "known only after all have been read",
         "leave --scope out, or prune twice");
  }
  if (s.has("scope") && !weights && !s.prune_heads.given() && !s.prune_mlp.given() &&
      !has_target(s)) {
    refuse_unused(s, "scope", "blocks are always compared over the model");
  }
}

// Whoever gives a flag that only the plan has a use for wants to see it.
bool wants_plan(const Settings& s) {
  static const std::vector<std::string> kOwn = {
      "from",  "out",  "heads", "mlp",   "blocks", "weights", "params",         "by",
      "scope", "mask", "seed",  "fresh", "data",   "samples", "no-compensation"};
  return std::any_of(s.given.begin(), s.given.end(), [](const auto& given) {
    return std::find(kOwn.begin(), kOwn.end(), given.first) == kOwn.end();
  });
}

// Plans for going on with a checkpoint's run when its model has another shape.
class TrainingPlans {
 public:
  TrainingPlans(const Settings& s, const SafetensorsReader& file, const CheckpointInfo& info)
      : settings_(s), machine_(resolve_machine(s)), budget_(resolve_budget(s, machine_)) {
    settings_.out.clear();
    settings_.decisions.optimizer = optimizer_of(s, file, info);
    settings_.decisions.galore_rank = rank_of(s, file, info);
    if (file.find(fmt::format("{}final_layer.linear.weight", kAverage)) == nullptr) {
      settings_.ema = 0;
    }
    if (!s.has("batch") && info.step > 0) settings_.batch = info.samples / info.step;
  }

  int64_t batch() const { return settings_.batch; }
  int64_t budget_bytes() const { return budget_; }
  const Machine& machine() const { return inside(machine_); }
  const MeasuredMachine& measured() const { return machine_; }

  bool fit(const DitConfig& config) const {
    return plan_run(run_spec(options(config), nullptr), machine()).fits;
  }
  // As `ebb plan` has it.
  PlanFigures plan(const DitConfig& config) const {
    TrainOptions chosen = options(config);
    PlannedRun planned = plan_run_and_floor(run_spec(chosen, nullptr), machine());
    if (!afford_pictures(chosen, {false, settings_.has("count")}, planned, machine()).empty()) {
      planned = {};  // gone before the next is made
      planned = plan_run_and_floor(run_spec(chosen, nullptr), machine());
    }
    return {planned.fits, planned.process_bytes(), planned.floor_bytes, planned.seconds};
  }

 private:
  static Optimizer optimizer_of(const Settings& s, const SafetensorsReader& file,
                                const CheckpointInfo& info) {
    const Optimizer own = saved_optimizer(file, info);
    if (s.decisions.optimizer.value_or(own) == own) return own;
    fail(Exit::usage,
         fmt::format("--optimizer: {} has the state of {}", printable(file.path().string()),
                     info.optimizer),
         "leave it out: the checkpoint says it");
  }

  static int64_t rank_of(const Settings& s, const SafetensorsReader& file,
                         const CheckpointInfo& info) {
    const int64_t asked = s.decisions.galore_rank.value_or(info.galore_rank);
    if (asked == info.galore_rank || (asked == Decisions::kQuarter && info.galore_rank > 0)) {
      return info.galore_rank;
    }
    fail(Exit::usage,
         fmt::format("--galore: {} has moments of {}", printable(file.path().string()),
                     info.galore_rank > 0 ? fmt::format("rank {}", info.galore_rank)
                                          : "the matrices' own shapes"),
         "leave it out: the checkpoint says it");
  }

  TrainOptions options(const DitConfig& config) const {
    Settings s = settings_;
    TrainOptions made = resolve_training(s, config, nullptr);
    made.budget_bytes = budget_;
    return made;
  }

  Settings settings_;
  MeasuredMachine machine_;
  int64_t budget_;
};

[[noreturn]] void refuse_target(const Settings& s, const DitConfig& smallest,
                                const TrainingPlans* plans) {
  constexpr const char* kSmallest = "with one head and one panel of MLP units in every block";
  const int64_t params = parameter_count(smallest);
  if (s.has("params") && params > s.params) {
    fail(Exit::usage,
         fmt::format("--params {}: {} parameters are left {}", s.params, params, kSmallest),
         "--blocks N removes whole blocks first");
  }
  fail(
      Exit::budget,
      fmt::format("--memory {}: training at --batch {} needs at least {} {}", format_size(s.memory),
                  plans->batch(), format_size(plans->plan(smallest).floor_bytes), kSmallest),
      "--blocks N removes whole blocks first; a smaller --batch, --offload DIR or --allow helps "
      "too");
}

// What is left, before it is known which single weights go.
DitConfig config_of(const Settings& s, const DitConfig& config, const Survivors& kept) {
  return with_expected_weights(pruned_config(config, kept), config, kept, s.prune_weights);
}

// Amounts first, then what else has to go for --params and --memory.
Selection choose(const Settings& s, const DitConfig& config, const Scores& scores, int64_t panel,
                 const TrainingPlans* plans) {
  const PruneRequest request{s.prune_heads, s.prune_mlp, s.prune_blocks,
                             s.scope == "model" ? Scope::model : Scope::block, panel};
  Selection made = select(config, scores, request);
  if (!has_target(s)) return made;
  const std::vector<Removal> order = removal_order(config, made.kept, scores, request.scope, panel);
  const auto fits = [&](const Survivors& kept) {
    const DitConfig pruned = config_of(s, config, kept);
    if (s.has("params") && parameter_count(pruned) > s.params) return false;
    return !s.has("memory") || plans->fit(pruned);
  };
  std::optional<Survivors> kept = remove_until(made.kept, order, fits);
  if (!kept) {
    const std::vector<bool> all(order.size(), true);
    refuse_target(s, config_of(s, config, without(made.kept, order, all)), plans);
  }
  made.kept = std::move(*kept);
  return made;
}

void refuse_nothing(const Settings& s, const PruneReport& report) {
  if (!(report.before == report.after) || has_target(s)) return;
  std::string why;
  for (const std::string& note : report.notes) why += "; " + note;
  fail(Exit::usage, fmt::format("prune: that removes nothing{}", why),
       s.has("mask") ? "a mask has a 0 for what goes" : "choose a larger amount");
}

// The parent is what a pruned model is compared with.
void refuse_parent(const Settings& s, const fs::path& from) {
  std::error_code ignored;
  if (!fs::equivalent(from, s.out, ignored)) return;
  fail(Exit::usage, fmt::format("--out: {} is the checkpoint that is pruned", printable(s.out)),
       "choose another file");
}

void show(const Settings& s, const PruneReport& report, const std::string& title) {
  if (s.json) {
    fmt::print("{}\n", prune_json(report));
    return;
  }
  fmt::print("{}\n", title);
  if (s.dry_run) fmt::print("{}", prune_table_text(report));
  fmt::print("{}", prune_summary_text(report));
  if (!s.dry_run) fmt::print("wrote {}\n", printable(s.out));
}

}  // namespace

int run_prune(Settings s) {  // NOLINT(performance-unnecessary-value-param): as every verb
  check_flags(s);
  const fs::path from = checkpoint_of(s.from);
  if (!s.dry_run) {
    refuse_parent(s, from);
    check_writable(s.out);
  }
  const SafetensorsReader file(from, Exit::disk);
  const CheckpointInfo info = read_info(file);
  check_tensors(file, info);
  std::optional<TrainingPlans> plans;
  if (wants_plan(s)) plans.emplace(s, file, info);
  const int64_t panel = (plans ? *plans->machine().device : device_with(0)).panel();
  PruneReport report{info.config, {}, {}, {}, 0, 0, {}, {}};
  DataScores scores;  // none, where a mask says all or no structure goes
  const bool chooses = !s.has("mask") && (has_structures(s) || has_target(s));
  if (chooses) scores = make_scores(s, file, info, plans ? &plans->measured() : nullptr);
  Selection chosen = s.has("mask") ? Selection{read_mask(s.mask, info.config), {}}
                     : chooses
                         ? choose(s, info.config, scores.scores, panel, plans ? &*plans : nullptr)
                         : Selection{all_of(info.config), {}};
  report.kept = std::move(chosen.kept);
  report.notes = std::move(chosen.notes);
  Surgery surgery{report.kept, s.fresh};
  surgery.weights = choose_weights(file, info.config, report.kept, s.prune_weights,
                                   s.scope == "model" ? Scope::model : Scope::block);
  report.after = pruned_config(info.config, surgery);
  refuse_nothing(s, report);
  if (report.before == report.after) report.notes.emplace_back("it is so already: nothing goes");
  report.notes.insert(report.notes.end(), scores.notes.begin(), scores.notes.end());
  if (s.by == "fluctuation" && !s.no_compensation) {
    surgery.gains = compensation(file, info.config, report.kept, scores.means);
    report.notes.emplace_back("biases make up for the mean of what goes");
  }
  if (plans) {
    report.batch = plans->batch();
    report.budget_bytes = plans->budget_bytes();
    report.plan_after = plans->plan(report.after);
    if (!s.json) report.plan_before = plans->plan(report.before);
  }
  if (!s.dry_run) write_pruned(s.out, file, info, surgery);
  show(s, report, fmt::format("{}, step {}", printable(from.string()), info.step));
  return 0;
}

}  // namespace ebb
