#include <fmt/format.h>

#include <filesystem>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/prune_report.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "model/optimizer.h"
#include "prune/mask.h"
#include "prune/scores.h"
#include "prune/selection.h"
#include "prune/surgery.h"
#include "state/checkpoint.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

bool has_amounts(const Settings& s) {
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
    for (const char* name : {"heads", "mlp", "blocks", "params", "memory", "by", "scope", "seed"}) {
      if (s.has(name)) refuse_unused(s, name, "--mask says all that is to go");
    }
    return;
  }
  if (!has_amounts(s) && !has_target(s)) {
    fail(Exit::usage, "prune: what is to go?",
         "give some of --heads, --mlp, --blocks, --params, --memory, or --mask");
  }
  if (s.has("seed") && s.by != "random") refuse_unused(s, "seed", "only --by random draws lots");
  if (s.has("scope") && !s.prune_heads.given() && !s.prune_mlp.given() && !has_target(s)) {
    refuse_unused(s, "scope", "blocks are always compared over the model");
  }
}

// Whoever gives a flag that only the plan has a use for wants to see it.
bool wants_plan(const Settings& s) {
  static const std::vector<std::string> kOwn = {
      "from", "out", "heads", "mlp", "blocks", "params", "by", "scope", "mask", "seed", "fresh"};
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
    if (file.find(fmt::format("{}final_layer.linear.weight", kAverage)) == nullptr) {
      settings_.ema = 0;
    }
    if (!s.has("batch") && info.step > 0) settings_.batch = info.samples / info.step;
  }

  int64_t batch() const { return settings_.batch; }
  int64_t budget_bytes() const { return budget_; }
  const Machine& machine() const { return inside(machine_); }

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
    for (size_t i = 0; i < optimizers().size(); ++i) {
      if (info.optimizer != optimizers()[i].name) continue;
      const auto own = static_cast<Optimizer>(i);
      if (s.decisions.optimizer.value_or(own) != own) {
        fail(Exit::usage,
             fmt::format("--optimizer: {} has the state of {}", printable(file.path().string()),
                         info.optimizer),
             "leave it out: the checkpoint says it");
      }
      return own;
    }
    fail(Exit::disk,
         fmt::format("{}: found the state of an optimizer '{}', which there is none of",
                     printable(file.path().string()), printable(info.optimizer)),
         "it was written by a later version of Ebb");
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

Scores scores_of(const Settings& s, const SafetensorsReader& file, const CheckpointInfo& info) {
  const ScoreBy by = parse_score(s.by);
  if (by == ScoreBy::random) {
    const PrunedRecord record =
        info.pruned.empty()
            ? PrunedRecord{}
            : pruned_from_json(info.pruned, info.config, file.path().string(), Exit::disk);
    return random_scores(info.config, record, static_cast<uint64_t>(s.seed));
  }
  const Scored wanted{s.prune_heads.given() || has_target(s), s.prune_mlp.given() || has_target(s),
                      s.prune_blocks.given()};
  return checkpoint_scores(file, info.config, by, wanted);
}

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

// Amounts first, then what else has to go for --params and --memory.
Selection choose(const Settings& s, const SafetensorsReader& file, const CheckpointInfo& info,
                 int64_t panel, const TrainingPlans* plans) {
  const DitConfig& config = info.config;
  if (s.has("mask")) return {read_mask(s.mask, config), {}};
  const Scores scores = scores_of(s, file, info);
  const PruneRequest request{s.prune_heads, s.prune_mlp, s.prune_blocks,
                             s.scope == "model" ? Scope::model : Scope::block, panel};
  Selection made = select(config, scores, request);
  if (!has_target(s)) return made;
  const std::vector<Removal> order = removal_order(config, made.kept, scores, request.scope, panel);
  const auto fits = [&](const Survivors& kept) {
    const DitConfig pruned = pruned_config(config, kept);
    if (s.has("params") && parameter_count(pruned) > s.params) return false;
    return !s.has("memory") || plans->fit(pruned);
  };
  std::optional<Survivors> kept = remove_until(made.kept, order, fits);
  if (!kept) {
    const std::vector<bool> all(order.size(), true);
    refuse_target(s, pruned_config(config, without(made.kept, order, all)), plans);
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

}  // namespace

int run_prune(Settings s) {
  check_flags(s);
  const fs::path from = checkpoint_of(s.from);
  if (!s.dry_run) {
    refuse_parent(s, from);
    check_writable(s.out);
  }
  const SafetensorsReader file(from, Exit::disk);
  const CheckpointInfo info = read_info(file);
  check_tensors(file, info.config);
  std::optional<TrainingPlans> plans;
  if (wants_plan(s)) plans.emplace(s, file, info);
  const int64_t panel = (plans ? *plans->machine().device : device_with(0)).panel();
  PruneReport report{info.config, {}, {}, {}, 0, 0, {}, {}};
  Selection chosen = choose(s, file, info, panel, plans ? &*plans : nullptr);
  report.kept = std::move(chosen.kept);
  report.notes = std::move(chosen.notes);
  report.after = pruned_config(info.config, report.kept);
  refuse_nothing(s, report);
  if (report.before == report.after) report.notes.emplace_back("it is so already: nothing goes");
  if (plans) {
    report.batch = plans->batch();
    report.budget_bytes = plans->budget_bytes();
    report.plan_after = plans->plan(report.after);
    if (!s.json) report.plan_before = plans->plan(report.before);
  }
  if (!s.dry_run) write_pruned(s.out, file, info, {report.kept, s.fresh});
  if (s.json) {
    fmt::print("{}\n", prune_json(report));
    return 0;
  }
  fmt::print("{}, step {}\n", printable(from.string()), info.step);
  if (s.dry_run) fmt::print("{}", prune_table_text(report));
  fmt::print("{}", prune_summary_text(report));
  if (!s.dry_run) fmt::print("wrote {}\n", printable(s.out));
  return 0;
}

}  // namespace ebb
