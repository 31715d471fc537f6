#include "train/planned_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu/device.h"
#include "sample/draw.h"
#include "train/budget.h"

namespace ebb {

namespace {

class Planner {
 public:
  Planner(const RunSpec& spec, const CostModel& costs)
      : spec_(spec),
        candidates_(step_candidates(spec.config, spec.step, spec.forced, costs, cpu_device())) {}

  PlannedRun plan() {
    int64_t outside = measure_outside_bytes({}) + spec_.held_bytes;
    // What the kernels of a choice take by themselves is known once they have run.
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      std::optional<PlannedRun> found =
          fastest_within(spec_.budget_bytes - outside + kMeasuringSlack);
      if (!found) break;
      outside = std::max(outside, measure_outside_bytes(found->plans) + spec_.held_bytes);
      if (!settle(*found, outside)) continue;
      found->floor_bytes = std::min(found->process_bytes(), smallest().plans.arena_bytes + outside);
      return std::move(*found);
    }
    PlannedRun floor = smallest();
    settle(floor, std::max(outside, measure_outside_bytes(floor.plans) + spec_.held_bytes));
    floor.floor_bytes = floor.process_bytes();
    return floor;
  }

 private:
  static constexpr int kAttempts = 3;

  // One process measures a little more than another: what `plan` named must be enough for `train`,
  // so a part of the reserve may be missing.
  bool settle(PlannedRun& run, int64_t outside) const {
    const int64_t left = spec_.budget_bytes - run.plans.arena_bytes;
    run.fits = left >= outside - kMeasuringSlack;
    run.outside_bytes = run.fits ? std::min(left, outside) : outside;
    return run.fits;
  }

  std::optional<PlannedRun> fastest_within(int64_t arena_bytes) const {
    for (const Candidate& candidate : candidates_) {
      if (candidate.bytes > arena_bytes) continue;
      PlannedRun made = place(candidate);
      if (made.plans.arena_bytes <= arena_bytes) return made;
    }
    return {};
  }

  PlannedRun smallest() const { return place(candidates_.back()); }

  PlannedRun place(const Candidate& candidate) const {
    PlannedRun made;
    made.step = spec_.step;
    made.step.choices = candidate.choices;
    made.seconds = candidate.seconds;
    const auto step = [&] { return write_step(spec_.config, made.step, cpu_device()); };
    if (!spec_.sampler) {
      made.plans = make_plans({step()});
      return made;
    }
    // Pictures are drawn in the step's bytes, as many at a time as fit there.
    made.sampler = spec_.sampler;
    const int64_t alone = make_plans({step()}).arena_bytes;
    for (int64_t& batch = made.sampler->batch;; batch = (batch + 1) / 2) {
      std::vector<Program> programs;
      programs.push_back(step());
      for (Program& p : sampler_programs(spec_.config, *made.sampler, cpu_device())) {
        programs.push_back(std::move(p));
      }
      made.plans = make_plans(std::move(programs));
      if (batch == 1 || made.plans.arena_bytes <= alone) return made;
    }
  }

  const RunSpec& spec_;
  const std::vector<Candidate> candidates_;
};

// "--batch 8 would need 1.8 GiB": the floor of a changed run.
std::string way_out(RunSpec changed, const std::string& how, const CostModel& costs) {
  changed.forced = {};
  const PlannedRun floor = Planner(changed, costs).plan();
  return fmt::format("{} would need {}", how, format_size(floor.floor_bytes));
}

}  // namespace

PlannedRun plan_run(const RunSpec& spec, const CostModel& costs) {
  return Planner(spec, costs).plan();
}

PlannedRun plan_fitting_run(const RunSpec& spec, const CostModel& costs) {
  PlannedRun planned = plan_run(spec, costs);
  if (!planned.fits) refuse_budget(spec, planned, costs);
  return planned;
}

void refuse_budget(const RunSpec& spec, const PlannedRun& planned, const CostModel& costs) {
  std::vector<std::string> ways;
  const Forced& f = spec.forced;
  if (f.micro_batch || f.layer_major || f.release || f.keep) {
    ways.push_back(way_out(spec,
                           "leaving --recompute, --micro-batch, --order and --release to the "
                           "planner",
                           costs));
  }
  if (spec.step.batch > 1) {
    RunSpec smaller = spec;
    smaller.step.batch = std::max<int64_t>(1, spec.step.batch / 4);
    if (smaller.sampler) smaller.sampler->batch = 1;
    ways.push_back(way_out(smaller, fmt::format("--batch {}", smaller.step.batch), costs));
  }
  if (spec.step.update && spec.step.ema) {
    RunSpec without = spec;
    without.step.ema = false;
    if (without.sampler) without.sampler->weights_prefix = "";
    ways.push_back(way_out(without, "--ema 0", costs));
  }
  if (spec.step.update && ways.size() < 2) {
    RunSpec half = spec;
    half.config.blocks.resize(std::max<size_t>(1, half.config.blocks.size() / 2));
    ways.push_back(way_out(half, fmt::format("--depth {}", half.config.blocks.size()), costs));
  }
  if (ways.size() > 2) ways.resize(2);
  fail(Exit::budget,
       fmt::format("plan: {} at --batch {} needs at least {}, over --memory {}", spec.name,
                   spec.step.batch, format_size(planned.floor_bytes),
                   format_size(spec.budget_bytes)),
       fmt::format("exact techniques are all in use; {}", fmt::join(ways, ", ")));
}

LargestBatch largest_batch(const RunSpec& spec, const CostModel& costs) {
  const int64_t outside = measure_outside_bytes({}) + spec.held_bytes;
  const int64_t limit = spec.budget_bytes - outside;
  const auto holds = [&](int64_t batch, bool full_speed) {
    RunSpec tried = spec;
    tried.step.batch = batch;
    if (full_speed) {
      tried.forced = {batch, false, false, KeepSet::all()};
    } else if (!tried.forced.micro_batch) {
      tried.forced.micro_batch = 1;
    }
    const auto found = step_candidates(tried.config, tried.step, tried.forced, costs, cpu_device());
    return !found.empty() && found.back().bytes <= limit;
  };
  const auto largest = [&](bool full_speed) {
    constexpr int64_t kMost = 1 << 20;
    if (!holds(1, full_speed)) return int64_t{0};
    int64_t low = 1;
    int64_t high = 2;
    while (high <= kMost && holds(high, full_speed)) low = std::exchange(high, 2 * high);
    while (high - low > std::max<int64_t>(1, low / 64)) {
      const int64_t middle = (low + high) / 2;
      (holds(middle, full_speed) ? low : high) = middle;
    }
    return std::min(low, kMost);
  };
  return {largest(true), largest(false)};
}

}  // namespace ebb
