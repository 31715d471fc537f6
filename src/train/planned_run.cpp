#include "train/planned_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu/device.h"
#include "sample/draw.h"
#include "train/outside.h"

namespace ebb {

namespace {

class Planner {
 public:
  Planner(const RunSpec& spec, const CostModel& costs)
      : spec_(spec),
        outside_(outside_bytes(spec.data_bytes) + spec.held_bytes),
        candidates_(step_candidates(spec.config, spec.step, spec.forced, costs, cpu_device())) {}

  // The fastest that fits, or the smallest.
  PlannedRun plan() const {
    for (const Candidate& candidate : candidates_) {
      // First by the estimate of the arena: placing every buffer takes longer.
      if (candidate.total_bytes() + outside_ > spec_.budget_bytes) continue;
      PlannedRun made = around(candidate);
      if (made.fits) return made;
    }
    return around(candidates_.back());
  }

  int64_t floor_bytes() const { return around(candidates_.back()).process_bytes(); }

 private:
  PlannedRun around(const Candidate& candidate) const {
    PlannedRun made = place(candidate);
    const int64_t own = bookkeeping_bytes(made.plans);
    const int64_t planning = planning_bytes(own, candidate.choices.offload.any());
    made.outside_bytes = outside_ + std::max(own, planning - made.plans.arena_bytes);
    made.fits = made.process_bytes() <= spec_.budget_bytes;
    return made;
  }

  PlannedRun place(const Candidate& candidate) const {
    PlannedRun made;
    made.step = spec_.step;
    made.step.choices = candidate.choices;
    made.seconds = candidate.seconds;
    // Not as a list in braces, which would copy it: a deep model's program is large.
    const auto step = [&] {
      std::vector<Program> programs;
      programs.push_back(write_step(spec_.config, made.step, cpu_device()));
      return programs;
    };
    if (!spec_.sampler) {
      made.plans = make_plans(step());
      return made;
    }
    // Pictures are drawn in the step's bytes, as many at a time as fit there.
    made.sampler = spec_.sampler;
    made.sampler->storage = candidate.choices.storage;
    made.sampler->offload = candidate.choices.offload;
    for (int64_t& batch = made.sampler->batch;; batch = (batch + 1) / 2) {
      std::vector<Program> programs = step();
      for (Program& p : sampler_programs(spec_.config, *made.sampler, cpu_device())) {
        programs.push_back(std::move(p));
      }
      made.plans = make_plans(std::move(programs));
      if (batch == 1 || made.plans.arena_bytes <= made.step_plan().bytes) return made;
    }
  }

  const RunSpec& spec_;
  const int64_t outside_;  // of the arena and of the plan; measured before the search takes memory
  const std::vector<Candidate> candidates_;
};

WayOut way_out(RunSpec changed, std::string how, const CostModel& costs) {
  const Allowed allowed = changed.forced.allowed;
  changed.forced = {};
  changed.forced.allowed = allowed;
  return {std::move(how), Planner(changed, costs).floor_bytes()};
}

// A lossy technique that is not allowed yet.
struct Lossy {
  const char* name;
  bool Allowed::*flag;
  bool needs_update;
};
constexpr Lossy kLossy[] = {{"adam8", &Allowed::adam8, true},
                            {"bf16", &Allowed::bf16, false},
                            {"ema16", &Allowed::ema16, true}};

}  // namespace

std::vector<WayOut> lossy_ways_out(const RunSpec& spec, const CostModel& costs) {
  std::vector<WayOut> ways;
  RunSpec all = spec;
  std::string names;
  for (const Lossy& lossy : kLossy) {
    if (spec.forced.allowed.*lossy.flag || (lossy.needs_update && !spec.step.update)) continue;
    if (lossy.flag == &Allowed::ema16 && !spec.step.ema) continue;
    RunSpec more = spec;
    more.forced.allowed.*lossy.flag = all.forced.allowed.*lossy.flag = true;
    names += fmt::format("{}{}", names.empty() ? "" : ",", lossy.name);
    ways.push_back(way_out(more, fmt::format("--allow {}", lossy.name), costs));
  }
  if (ways.size() > 1) ways.push_back(way_out(all, "--allow " + names, costs));
  std::stable_sort(ways.begin(), ways.end(),
                   [](const WayOut& a, const WayOut& b) { return a.floor_bytes > b.floor_bytes; });
  return ways;
}

namespace {

// Those that change the training least come first.
std::vector<WayOut> ways_out(const RunSpec& spec, const CostModel& costs) {
  std::vector<WayOut> ways;
  const Forced& f = spec.forced;
  if (f.micro_batch || f.layer_major || f.release || f.keep) {
    ways.push_back(way_out(
        spec, "leaving --recompute, --micro-batch, --order and --release to the planner", costs));
  }
  if (!spec.forced.allowed.offload && spec.step.update) {
    RunSpec away = spec;
    away.forced.allowed.offload = true;
    ways.push_back(way_out(away, "--offload DIR", costs));
  }
  for (WayOut& way : lossy_ways_out(spec, costs)) ways.push_back(std::move(way));
  if (spec.step.batch > 1) {
    RunSpec smaller = spec;
    smaller.step.batch = std::max<int64_t>(1, spec.step.batch / 4);
    ways.push_back(way_out(smaller, fmt::format("--batch {}", smaller.step.batch), costs));
  }
  if (spec.step.update && spec.step.ema) {
    RunSpec without = spec;
    without.step.ema = false;
    if (without.sampler) without.sampler->weights_prefix = "";
    ways.push_back(way_out(without, "--ema 0", costs));
  }
  if (spec.step.update && spec.config.depth() > 1) {
    RunSpec half = spec;
    half.config.blocks.resize(half.config.blocks.size() / 2);
    ways.push_back(way_out(half, fmt::format("--depth {}", half.config.blocks.size()), costs));
  }
  return ways;
}

}  // namespace

PlannedRun plan_run(const RunSpec& spec, const CostModel& costs) {
  return Planner(spec, costs).plan();
}

PlannedRun plan_run_and_floor(const RunSpec& spec, const CostModel& costs) {
  const Planner planner(spec, costs);
  const int64_t floor = planner.floor_bytes();  // first: its plan is gone before the other is made
  PlannedRun planned = planner.plan();
  planned.floor_bytes = planned.fits ? std::min(floor, planned.process_bytes()) : floor;
  return planned;
}

PlannedRun plan_fitting_run(const RunSpec& spec, const CostModel& costs) {
  PlannedRun planned = plan_run(spec, costs);
  if (!planned.fits) refuse_budget(spec, planned, costs);
  return planned;
}

void refuse_budget(const RunSpec& spec, const PlannedRun& planned, const CostModel& costs) {
  std::vector<WayOut> ways = ways_out(spec, costs);
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
  fail(Exit::budget,
       fmt::format("plan: {} at --batch {} needs at least {}, over --memory {}", spec.name,
                   spec.step.batch, format_size(planned.process_bytes()),
                   format_size(spec.budget_bytes)),
       fmt::format("exact techniques {}are all in use; {}",
                   spec.forced.allowed.offload ? "" : "in memory ", fmt::join(named, ", ")));
}

LargestBatch largest_batch(const std::function<RunSpec(int64_t batch)>& spec_of,
                           const CostModel& costs) {
  const auto wanted = [&](int64_t batch, bool full_speed) {
    RunSpec spec = spec_of(batch);
    if (full_speed) {
      spec.forced.micro_batch = batch;
      spec.forced.layer_major = spec.forced.release = false;
      spec.forced.keep = KeepSet::all();
    }
    return spec;
  };
  const auto estimated_arena = [&](int64_t batch, bool full_speed) {
    RunSpec spec = wanted(batch, full_speed);
    if (!spec.forced.micro_batch) spec.forced.micro_batch = 1;
    return step_candidates(spec.config, spec.step, spec.forced, costs, cpu_device())
        .back()
        .total_bytes();
  };
  const auto estimated = [&](bool full_speed, int64_t beside_it) {
    const int64_t room = spec_of(1).budget_bytes - beside_it;
    constexpr int64_t kMost = 1 << 20;
    if (estimated_arena(1, full_speed) > room) return int64_t{0};
    int64_t low = 1;
    int64_t high = 2;
    while (high <= kMost && estimated_arena(high, full_speed) <= room) {
      low = std::exchange(high, 2 * high);
    }
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (estimated_arena(middle, full_speed) <= room ? low : high) = middle;
    }
    return std::min(low, kMost);
  };
  // By estimate; then the plan itself has the last word, with what its kernels take.
  const auto largest = [&](bool full_speed) {
    const RunSpec one = spec_of(1);
    int64_t batch = estimated(full_speed, outside_bytes(one.data_bytes) + one.held_bytes);
    while (batch > 0) {
      const PlannedRun run = plan_run(wanted(batch, full_speed), costs);
      if (run.fits) break;
      const int64_t beside_it = run.process_bytes() - estimated_arena(batch, full_speed);
      batch = std::min(batch - 1, estimated(full_speed, beside_it));
    }
    return batch;
  };
  return {largest(true), largest(false)};
}

}  // namespace ebb
