#include "plan/planned_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "plan/rank_sum.h"
#include "plan/staged.h"

namespace ebb {

namespace {

class Planner {
 public:
  Planner(const RunSpec& spec, const Machine& machine)
      : spec_(spec),
        machine_(machine),
        outside_(machine.outside_bytes + spec.data_bytes + spec.held_bytes +
                 (spec.step.place.alone() ? 0 : machine.peers_bytes)),
        candidates_(spec.step.place.pipe > 1 ? staged(spec.budget_bytes - outside_)
                                             : step_candidates(spec.config, of_rank(spec.step, 0),
                                                               spec.decisions, machine)) {}

  // The fastest that fits, or the smallest.
  PlannedRun plan() const {
    for (const Candidate& candidate : candidates_) {
      // First by the estimate of the arena: placing every buffer takes longer.
      if (candidate.total_bytes() + outside_ > spec_.budget_bytes) continue;
      PlannedRun made = around(candidate);
      if (made.fits) return made;
    }
    return smallest();
  }

  int64_t floor_bytes() const { return smallest().most_bytes(); }

 private:
  // The least that any of them takes, and that the lanes hold.
  PlannedRun smallest() const {
    const bool stages = spec_.step.place.pipe > 1;
    const std::vector<Candidate> least = stages ? staged(0) : std::vector<Candidate>();
    std::vector<const Candidate*> by_bytes;
    for (const Candidate& each : stages ? least : candidates_) by_bytes.push_back(&each);
    std::stable_sort(by_bytes.begin(), by_bytes.end(), [](const Candidate* a, const Candidate* b) {
      return a->total_bytes() < b->total_bytes();
    });
    for (const Candidate* candidate : by_bytes) {
      PlannedRun made = around(*candidate);
      if (lanes_hold(made.plans)) return made;
    }
    throw Bug("plan: no way to carry out the step in memory alone");
  }

  // Over ranks, the plan of this one: every other's is made before it, and only what it takes is
  // kept.
  PlannedRun around(const Candidate& candidate) const {
    const RankPlace place = spec_.step.place;
    if (place.alone()) return of_one(candidate, 0);
    RankSum all(place.ranks());
    PlannedRun made;
    for (int away = 1; away <= place.ranks(); ++away) {
      const int rank = (place.rank + away) % place.ranks();
      made = {};
      made = of_one(candidate, rank);
      all.add(rank, made, machine_);
    }
    all.finish(made, machine_);
    return made;
  }

  std::vector<Candidate> staged(int64_t arena_bytes) const {
    return staged_candidates(spec_.config, of_rank(spec_.step, 0), spec_.decisions, machine_,
                             arena_bytes);
  }

  PlannedRun of_one(const Candidate& candidate, int rank) const {
    PlannedRun made = place(candidate, rank);
    const int64_t own = bookkeeping_bytes(made.plans);
    const int64_t planning = std::max(candidate.looking_bytes - kRunningBytes,
                                      planning_bytes(own, candidate.choices.offload.any()));
    const int64_t apart = std::max(planning, spec_.apart_bytes);
    made.outside_bytes = outside_ + std::max(own, apart - made.plans.arena_bytes);
    made.fits = made.process_bytes() <= spec_.budget_bytes && lanes_hold(made.plans);
    return made;
  }

  bool lanes_hold(const PlanSet& plans) const {
    for (size_t lane = 0; lane < plans.away_bytes.size(); ++lane) {
      if (plans.away_bytes[lane] > machine_.lanes[lane].most_bytes) return false;
    }
    return true;
  }

  static StepSpec of_rank(StepSpec step, int rank) {
    step.place.rank = rank;
    return step;
  }

  PlannedRun place(const Candidate& candidate, int rank) const {
    PlannedRun made;
    made.step = of_rank(spec_.step, rank);
    made.step.place.cuts = candidate.cuts;
    made.step.choices = candidate.choices;
    made.seconds = candidate.seconds;
    // Not as a list in braces, which would copy it: a deep model's program is large.
    const auto step = [&] {
      std::vector<Program> programs;
      programs.push_back(write_step(spec_.config, made.step, *machine_.device));
      return programs;
    };
    if (!spec_.sampler) {
      made.plans = make_plans(step(), machine_.limits());
      return made;
    }
    // Pictures are drawn in the step's bytes, as many at a time as fit there.
    made.sampler = spec_.sampler;
    made.sampler->storage = candidate.choices.storage;
    made.sampler->offload = candidate.choices.offload;
    // The average lies with its owners: it takes the weights' place while pictures are drawn.
    if (candidate.choices.shard != Shard::off) made.sampler->weights_prefix = "";
    for (int64_t& batch = made.sampler->batch;; batch = (batch + 1) / 2) {
      std::vector<Program> programs = step();
      for (Program& p : sampler_programs(spec_.config, *made.sampler, *machine_.device)) {
        programs.push_back(std::move(p));
      }
      made.plans = make_plans(std::move(programs), machine_.limits());
      if (batch == 1 || made.plans.arena_bytes <= made.step_plan().bytes) return made;
    }
  }

  const RunSpec& spec_;
  const Machine& machine_;
  const int64_t outside_;  // of the arena and of the plan
  const std::vector<Candidate> candidates_;
};

WayOut way_out(RunSpec changed, std::string how, const Machine& machine) {
  std::set<std::string> allowed = std::move(changed.decisions.allowed);
  changed.decisions = {};
  changed.decisions.allowed = std::move(allowed);
  return {std::move(how), Planner(changed, machine).floor_bytes()};
}

}  // namespace

std::vector<WayOut> lossy_ways_out(const RunSpec& spec, const Machine& machine) {
  std::vector<WayOut> ways;
  RunSpec all = spec;
  std::string names;
  std::vector<AllowWord> words = allow_words();
  std::sort(words.begin(), words.end(), [](const AllowWord& a, const AllowWord& b) {
    return std::string_view(a.word) < b.word;
  });
  for (const AllowWord& word : words) {
    if (!word.way_out || spec.decisions.allows(word.word)) continue;
    if ((word.of_update && !spec.step.update) || (word.of_average && !spec.step.ema)) continue;
    RunSpec more = spec;
    more.decisions.allowed.insert(word.word);
    all.decisions.allowed.insert(word.word);
    names += fmt::format("{}{}", names.empty() ? "" : ",", word.word);
    ways.push_back(way_out(more, fmt::format("--allow {}", word.word), machine));
  }
  if (ways.size() > 1) ways.push_back(way_out(all, "--allow " + names, machine));
  std::stable_sort(ways.begin(), ways.end(),
                   [](const WayOut& a, const WayOut& b) { return a.floor_bytes > b.floor_bytes; });
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
  if (spec.step.batch > 1) {
    RunSpec smaller = spec;
    smaller.step.batch = std::max<int64_t>(1, spec.step.batch / 4);
    ways.push_back(way_out(smaller, fmt::format("--batch {}", smaller.step.batch), machine));
  }
  if (spec.step.update && spec.step.ema) {
    RunSpec without = spec;
    without.step.ema = false;
    if (without.sampler) without.sampler->weights_prefix = "";
    ways.push_back(way_out(without, "--ema 0", machine));
  }
  if (spec.step.update && spec.config.depth() > 1) {
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
  if (!spec.step.update) return std::nullopt;
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
  Look too_little{0, static_cast<double>(unpruned.process_bytes()), 0};
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

// As a flag takes it.
std::string size_word(int64_t bytes) {
  for (const auto& [letter, power] : {std::pair{'G', 30}, {'M', 20}}) {
    if (bytes % (int64_t{1} << power) == 0) return fmt::format("{}{}", bytes >> power, letter);
  }
  return fmt::format("{}", bytes);
}

}  // namespace

PlannedRun plan_run(const RunSpec& spec, const Machine& machine) {
  return Planner(spec, machine).plan();
}

PlannedRun plan_run_and_floor(const RunSpec& spec, const Machine& machine) {
  const Planner planner(spec, machine);
  const int64_t floor = planner.floor_bytes();  // first: its plan is gone before the other is made
  PlannedRun planned = planner.plan();
  planned.floor_bytes = planned.fits ? std::min(floor, planned.most_bytes()) : floor;
  return planned;
}

PlannedRun plan_fitting_run(const RunSpec& spec, const Machine& machine) {
  PlannedRun planned = plan_run(spec, machine);
  if (!planned.fits) refuse_budget(spec, planned, machine);
  return planned;
}

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
  fail(Exit::budget,
       fmt::format("plan: {} at --batch {} needs at least {}, over --memory {}", spec.name,
                   spec.step.batch, format_size(planned.process_bytes()),
                   format_size(spec.budget_bytes)),
       fmt::format("exact techniques {}are all in use; {}{}",
                   machine.lanes.empty() ? "in memory " : "", fmt::join(named, ", "), pruning));
}

PlannedSampling plan_sampling(const SamplingSpec& spec, const Machine& machine) {
  PlannedSampling made;
  made.sampler = spec.sampler;
  int64_t& batch = made.sampler.batch;
  for (batch = std::min(batch, spec.samples);; batch /= 2) {
    made.plans =
        make_plans(sampler_programs(spec.config, made.sampler, *machine.device), machine.limits());
    made.outside_bytes = machine.outside_bytes + spec.held_bytes + bookkeeping_bytes(made.plans);
    const int64_t needed = made.plans.arena_bytes + made.outside_bytes;
    if (needed <= spec.budget_bytes) return made;
    if (batch > 1 && !spec.batch_decided) continue;
    fail(
        Exit::budget,
        fmt::format("plan: drawing {} samples with {}, {} together, needs {} ({} arena, {} outside "
                    "it), over --memory {}",
                    spec.samples, spec.name, batch, format_size(needed),
                    format_size(made.plans.arena_bytes), format_size(made.outside_bytes),
                    format_size(spec.budget_bytes)),
        "give a larger --memory, a smaller --batch or --count, or --out FILE.npz");
  }
}

double drawing_seconds(const DitConfig& config, SamplerSpec sampler, int64_t samples,
                       const Machine& machine) {
  sampler.batch = std::min(samples, sampler.batch);
  double once = 0;
  for (const Program& program : sampler_programs(config, sampler, *machine.device)) {
    once +=
        (program.name == kSamplerProgram ? sampler.steps : 1) * predicted_seconds(program, machine);
  }
  const int64_t batches = (samples + sampler.batch - 1) / sampler.batch;
  return static_cast<double>(batches) * once;
}

LargestBatch largest_batch(const std::function<RunSpec(int64_t batch)>& spec_of,
                           const Machine& machine) {
  const auto wanted = [&](int64_t batch, bool full_speed) {
    RunSpec spec = spec_of(batch);
    if (full_speed) {
      spec.decisions.micro_batch = batch;
      spec.decisions.layer_major = spec.decisions.release = false;
      spec.decisions.keep = KeepSet::all();
    }
    return spec;
  };
  const auto estimated_arena = [&](int64_t batch, bool full_speed) {
    RunSpec spec = wanted(batch, full_speed);
    if (!spec.decisions.micro_batch) spec.decisions.micro_batch = 1;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const Candidate& each : step_candidates(spec.config, spec.step, spec.decisions, machine)) {
      least = std::min(least, each.total_bytes());
    }
    return least;
  };
  const auto estimated = [&](bool full_speed, int64_t beside_it) {
    const int64_t room = spec_of(1).budget_bytes - beside_it;
    if (estimated_arena(1, full_speed) > room) return int64_t{0};
    int64_t low = 1;
    int64_t high = 2;
    while (high <= kMostBatch && estimated_arena(high, full_speed) <= room) {
      low = std::exchange(high, 2 * high);
    }
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (estimated_arena(middle, full_speed) <= room ? low : high) = middle;
    }
    return std::min(low, kMostBatch);
  };
  // By estimate; then the plan itself has the last word, with what its kernels take.
  const auto largest = [&](bool full_speed) {
    const RunSpec one = spec_of(1);
    int64_t batch = estimated(full_speed, machine.outside_bytes + one.data_bytes + one.held_bytes);
    while (batch > 0) {
      const PlannedRun run = plan_run(wanted(batch, full_speed), machine);
      if (run.fits) break;
      const int64_t beside_it = run.process_bytes() - estimated_arena(batch, full_speed);
      batch = std::min(batch - 1, estimated(full_speed, beside_it));
    }
    return batch;
  };
  return {largest(true), largest(false)};
}

}  // namespace ebb
