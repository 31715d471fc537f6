// What would make a run fit that does not: for the refusal of a budget, and for `ebb plan`.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "plan/layout.h"
#include "plan/planned_run.h"

namespace ebb {

namespace {

// But for how gradients go between ranks, which is a matter of more than memory, all is left to the
// planner.
WayOut way_out(RunSpec changed, std::string how, const Machine& machine) {
  const Decisions decided = std::exchange(changed.decisions, {});
  changed.decisions.allowed = decided.allowed;
  changed.decisions.exchange = decided.exchange;
  changed.decisions.exchange_warmup = decided.exchange_warmup;
  return {std::move(how), floor_of(changed, machine)};
}

}  // namespace

std::vector<WayOut> lossy_ways_out(const RunSpec& spec, const Machine& machine) {
  std::vector<WayOut> ways, further;  // what rounds numbers, and what goes another way with them
  RunSpec all = spec;
  std::string names;
  std::vector<AllowWord> words = allow_words();
  std::sort(words.begin(), words.end(), [](const AllowWord& a, const AllowWord& b) {
    return std::string_view(a.word) < b.word;
  });
  for (const AllowWord& word : words) {
    if (!word.way_out || spec.decisions.allows(word.word)) continue;
    if ((word.of_update && !spec.step.update) || (word.of_average && !spec.step.ema)) continue;
    if (word.of_adamw && spec.step.optimizer != Optimizer::adamw) continue;
    if (!word.of_parts && spec.step.place.tensor > 1) continue;
    RunSpec more = spec;
    more.decisions.allowed.insert(word.word);
    all.decisions.allowed.insert(word.word);
    names += fmt::format("{}{}", names.empty() ? "" : ",", word.word);
    (word.of_adamw ? further : ways)
        .push_back(way_out(more, fmt::format("--allow {}", word.word), machine));
  }
  std::stable_sort(ways.begin(), ways.end(),
                   [](const WayOut& a, const WayOut& b) { return a.floor_bytes > b.floor_bytes; });
  ways.insert(ways.end(), further.begin(), further.end());
  if (ways.size() > 1) ways.push_back(way_out(all, "--allow " + names, machine));
  return ways;
}

namespace {

// Those that change the training least come first.
std::vector<WayOut> ways_out(const RunSpec& spec, const Machine& machine) {
  std::vector<WayOut> ways;
  const Decisions& d = spec.decisions;
  if (d.micro_batch || d.layer_major || d.release || d.keep) {
    ways.push_back(way_out(
        spec, "leaving --recompute, --micro-batch, --order and --release to the planner", machine));
  }
  if (machine.lanes.empty() && spec.step.update) {
    Machine with_disk = machine;
    with_disk.lanes.push_back(nominal_disk());
    ways.push_back(way_out(spec, "--offload DIR", with_disk));
  }
  for (WayOut& way : lossy_ways_out(spec, machine)) ways.push_back(std::move(way));
  // A sample for every group and every leaf, a block for every stage.
  const RankPlace& place = spec.step.place;
  const int64_t fewest = std::max<int64_t>(place.data, spec.step.leaves);
  if (spec.step.batch > fewest) {
    RunSpec smaller = spec;
    smaller.step.batch = std::max(fewest, spec.step.batch / 4);
    ways.push_back(way_out(smaller, fmt::format("--batch {}", smaller.step.batch), machine));
  }
  if (spec.step.update && spec.step.ema) {
    RunSpec without = spec;
    without.step.ema = false;
    if (without.sampler) without.sampler->weights_prefix = "";
    ways.push_back(way_out(without, "--ema 0", machine));
  }
  if (spec.step.update && spec.config.depth() / 2 >= place.pipe) {
    RunSpec half = spec;
    half.config.blocks.resize(half.config.blocks.size() / 2);
    ways.push_back(way_out(half, fmt::format("--depth {}", half.config.blocks.size()), machine));
  }
  return ways;
}

// The model without this share of its heads and of its MLP: whole heads, widths that products take
// whole, and one of each in every half that there is.
DitConfig thinned(DitConfig config, double share, int64_t panel) {
  const auto left = [&](int64_t count, int64_t unit) {
    if (count == 0) return count;
    const auto units = static_cast<int64_t>(
        std::ceil(static_cast<double>(count) * (1 - share) / static_cast<double>(unit) - 1e-9));
    return std::min(count, std::max<int64_t>(1, units) * unit);
  };
  const double density = density_of(config);
  for (BlockShape& shape : config.blocks) {
    shape = {left(shape.heads, 1), left(shape.mlp, panel)};
  }
  if (density < 1) set_density(config, density);
  return config;
}

// The share of the parameters that pruning would remove until the run fits. Nothing where no
// pruning is enough. What a run takes falls nearly in proportion to its parameters, so that a few
// looks find it; planning must stay quick.
std::optional<double> pruned_share(const RunSpec& spec, const PlannedRun& unpruned,
                                   const Machine& machine) {
  // What is left of a block might be less than one head for each of its ranks.
  if (!spec.step.update || spec.step.place.tensor > 1) return std::nullopt;
  const int64_t panel = machine.device->panel();
  const auto params = static_cast<double>(parameter_count(spec.config));
  struct Look {
    double share, bytes, removed;
  };
  const auto look = [&](double share) {
    RunSpec pruned = spec;
    pruned.config = thinned(spec.config, share, panel);
    const auto left = static_cast<double>(parameter_count(pruned.config));
    return Look{share, static_cast<double>(way_out(pruned, "", machine).floor_bytes),
                1 - left / params};
  };
  const auto budget = static_cast<double>(spec.budget_bytes);
  Look too_much = look(1);
  if (too_much.removed <= 0 || too_much.bytes > budget) return std::nullopt;
  Look too_little{0, static_cast<double>(unpruned.most_bytes()), 0};
  constexpr int kLooks = 3;
  for (int i = 0; i < kLooks && too_little.bytes > too_much.bytes; ++i) {
    const double part = (too_little.bytes - budget) / (too_little.bytes - too_much.bytes);
    const double share = too_little.share + part * (too_much.share - too_little.share);
    constexpr double kNear = 0.01;  // heads and panels are not finer
    const Look between = look(std::min(share + kNear, too_much.share));
    (between.bytes <= budget ? too_much : too_little) = between;
  }
  return too_much.removed;
}

// Of a run whose codes change: when it takes that much.
std::string fullest_phase(const PlannedRun& planned) {
  for (const PlannedPhase& phase : planned.phases) {
    if (phase.process_bytes < planned.most_bytes()) continue;
    return fmt::format(" after step {}, with --exchange {}", phase.begin, phase.code);
  }
  return "";
}

// As a flag takes it.
std::string size_word(int64_t bytes) {
  for (const auto& [letter, power] : {std::pair{'G', 30}, {'M', 20}}) {
    if (bytes % (int64_t{1} << power) == 0) return fmt::format("{}{}", bytes >> power, letter);
  }
  return fmt::format("{}", bytes);
}

}  // namespace

void refuse_budget(const RunSpec& spec, const PlannedRun& planned, const Machine& machine) {
  std::vector<WayOut> ways = ways_out(spec, machine);
  // Those that fit, and then those that come nearest.
  const auto rest = std::stable_partition(ways.begin(), ways.end(), [&](const WayOut& way) {
    return way.floor_bytes <= spec.budget_bytes;
  });
  std::stable_sort(rest, ways.end(),
                   [](const WayOut& a, const WayOut& b) { return a.floor_bytes < b.floor_bytes; });
  // Of every kind one: a flag that is told once is not told again.
  std::vector<std::string> named;
  std::string last;
  for (const WayOut& way : ways) {
    const std::string flag = way.how.substr(0, way.how.find(' '));
    if (named.size() == 3 || flag == last) continue;
    last = flag;
    named.push_back(fmt::format("{} would need {}", way.how, format_size(way.floor_bytes)));
  }
  std::string pruning;
  if (const auto share = pruned_share(spec, planned, machine)) {
    pruning = fmt::format(
        "; `ebb prune --memory {} --batch {}` would remove {:.0f} % of the "
        "parameters",
        size_word(spec.budget_bytes), spec.step.batch, 100 * *share);
  }
  const RankPlace& place = spec.step.place;
  fail(Exit::budget,
       fmt::format("plan: {} at --batch {}{} needs at least {}{}, over --memory {}", spec.name,
                   spec.step.batch, place.alone() ? "" : " --ranks " + layout_text(place),
                   format_size(planned.most_bytes()), fullest_phase(planned),
                   format_size(spec.budget_bytes)),
       fmt::format("exact techniques {}are all in use; {}{}",
                   machine.lanes.empty() ? "in memory " : "", fmt::join(named, ", "), pruning));
}

}  // namespace ebb
