#include "train/planned_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
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
        candidates_(step_candidates(spec.config, spec.step, spec.forced, costs, cpu_device())),
        none_(measure_outside_bytes({}) + spec.held_bytes) {}

  // The fastest that fits, or the smallest.
  PlannedRun plan() {
    for (const Candidate& candidate : candidates_) {
      // First by what any run takes, then by what the kernels of this size of micro-batch take.
      if (candidate.bytes + none_ > limit()) continue;
      std::optional<PlannedRun> made;
      if (!outside_.count(size_of(candidate))) made = measured(candidate);
      if (candidate.bytes + outside_.at(size_of(candidate)) > limit()) continue;
      if (!made) made = place(candidate);
      if (made->plans.arena_bytes + outside_.at(size_of(candidate)) > limit()) continue;
      return settled(std::move(*made));
    }
    return settled(measured(candidates_.back()));
  }

  int64_t floor_bytes() {
    const PlannedRun floor = measured(candidates_.back());
    return floor.plans.arena_bytes + outside_.at(size_of(candidates_.back()));
  }

 private:
  // One process measures a little more than another: what `plan` named must be enough for `train`,
  // so a part of the reserve may be missing.
  int64_t limit() const { return spec_.budget_bytes + kMeasuringSlack; }

  static int64_t size_of(const Candidate& candidate) { return candidate.choices.micro_batch; }

  PlannedRun measured(const Candidate& candidate) {
    PlannedRun made = place(candidate);
    int64_t& outside = outside_[size_of(candidate)];
    outside = std::max(outside, measure_outside_bytes(made.plans) + spec_.held_bytes);
    prepared_ = size_of(candidate);
    return made;
  }

  PlannedRun settled(PlannedRun run) {
    const int64_t size = run.step.choices.micro_batch;
    if (prepared_ != size) measure_outside_bytes(run.plans);
    const int64_t outside = outside_.at(size);
    const int64_t left = spec_.budget_bytes - run.plans.arena_bytes;
    run.fits = left >= outside - kMeasuringSlack;
    run.outside_bytes = run.fits ? std::min(left, outside) : outside;
    return run;
  }

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
    for (int64_t& batch = made.sampler->batch;; batch = (batch + 1) / 2) {
      std::vector<Program> programs;
      programs.push_back(step());
      for (Program& p : sampler_programs(spec_.config, *made.sampler, cpu_device())) {
        programs.push_back(std::move(p));
      }
      made.plans = make_plans(std::move(programs));
      if (batch == 1 || made.plans.arena_bytes <= made.step_plan().bytes) return made;
    }
  }

  const RunSpec& spec_;
  const std::vector<Candidate> candidates_;
  const int64_t none_;                  // outside the arena, before any kernel is compiled
  std::map<int64_t, int64_t> outside_;  // the same with the kernels of a size of micro-batch
  int64_t prepared_ = -1;               // the size whose kernels are compiled now
};

// "--batch 8 would need 1.8 GiB": the floor of a changed run.
std::string way_out(RunSpec changed, const std::string& how, const CostModel& costs) {
  changed.forced = {};
  return fmt::format("{} would need {}", how, format_size(Planner(changed, costs).floor_bytes()));
}

}  // namespace

PlannedRun plan_run(const RunSpec& spec, const CostModel& costs) {
  return Planner(spec, costs).plan();
}

PlannedRun plan_run_and_floor(const RunSpec& spec, const CostModel& costs) {
  Planner planner(spec, costs);
  const int64_t floor = planner.floor_bytes();
  PlannedRun planned = planner.plan();
  planned.floor_bytes =
      planned.fits ? std::min(floor, planned.process_bytes()) : planned.process_bytes();
  return planned;
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
                   spec.step.batch, format_size(planned.process_bytes()),
                   format_size(spec.budget_bytes)),
       fmt::format("exact techniques are all in use; {}", fmt::join(ways, ", ")));
}

LargestBatch largest_batch(const std::function<RunSpec(int64_t batch)>& spec_of,
                           const CostModel& costs) {
  const auto forced = [&](int64_t batch, bool full_speed) {
    RunSpec spec = spec_of(batch);
    spec.sampler.reset();
    if (full_speed) {
      spec.forced = {batch, false, false, KeepSet::all()};
    } else if (!spec.forced.micro_batch) {
      spec.forced.micro_batch = 1;
    }
    return spec;
  };
  const int64_t outside = measure_outside_bytes({});
  const auto holds = [&](int64_t batch, bool full_speed) {
    const RunSpec spec = forced(batch, full_speed);
    const auto found = step_candidates(spec.config, spec.step, spec.forced, costs, cpu_device());
    return found.back().bytes + outside + spec.held_bytes <= spec.budget_bytes;
  };
  // By estimate first; then the plan itself has the last word, with what its kernels take.
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
    low = std::min(low, kMost);
    while (low > 0 && !plan_run(forced(low, full_speed), costs).fits) {
      low -= std::max<int64_t>(1, low / 16);
    }
    return low;
  };
  return {largest(true), largest(false)};
}

}  // namespace ebb
