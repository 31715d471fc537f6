#include "plan/planned_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "plan/phases.h"
#include "plan/rank_sum.h"
#include "plan/staged.h"

namespace ebb {

namespace {

class Planner {
 public:
  // For the fastest that fits, or for the least that any way takes alone.
  enum class Looks : uint8_t { for_fastest, for_least };

  Planner(const RunSpec& spec, const Machine& machine, Looks looks = Looks::for_fastest)
      : spec_(spec),
        machine_(machine),
        looks_(looks),
        outside_(machine.outside_bytes + spec.data_bytes + spec.held_bytes +
                 (spec.step.place.alone() ? 0 : machine.peers_bytes)),
        candidates_(is_staged()
                        ? staged(looks == Looks::for_least ? 0 : spec.budget_bytes - outside_)
                        : step_candidates(spec.config,
                                          of_rank(spec.step, spec.step.place.ranks() - 1),
                                          spec.decisions, machine)) {}

  // The fastest that fits, or the smallest.
  PlannedRun plan() const {
    std::optional<PlannedRun> made = fastest();
    return made ? std::move(*made) : smallest();
  }

  // Programs that were written do not come to less than their estimate; a profile's might.
  std::optional<PlannedRun> plan_if_it_fits() const {
    std::optional<PlannedRun> made = fastest();
    if (!made && !is_staged()) made = smallest();
    if (made && !made->fits) made.reset();
    return made;
  }

  int64_t floor_bytes() const { return smallest().most_bytes(); }

 private:
  // What ranks exchange is a matter of.
  using Way = std::pair<Shard, std::string>;
  static Way way_of(const Choices& choices) {
    return {choices.shard, exchange_text(choices.storage.exchange)};
  }

  // The fastest that fits by its estimate, if one does.
  std::optional<PlannedRun> fastest() const {
    if (!spec_.step.place.alone()) return fastest_of_ways();
    const Candidate* first = nullptr;
    PlannedRun made = first_that_fits({}, first);
    if (first == nullptr) return std::nullopt;
    return made;
  }

  // Among those of one way, if one is asked for.
  PlannedRun first_that_fits(const std::optional<Way>& way, const Candidate*& found) const {
    for (const Candidate& candidate : candidates_) {
      if (way && way_of(candidate.choices) != *way) continue;
      // First by the estimate of the arena: placing every buffer takes longer.
      if (candidate.total_bytes() + outside_ > spec_.budget_bytes) continue;
      PlannedRun made = around(candidate);
      if (!made.fits) continue;
      found = &candidate;
      return made;
    }
    return {};
  }

  // What ranks exchange shows only when all of them are played side by side. One plan at a time is
  // kept.
  std::optional<PlannedRun> fastest_of_ways() const {
    std::vector<Way> ways;
    for (const Candidate& candidate : candidates_) ways.push_back(way_of(candidate.choices));
    std::sort(ways.begin(), ways.end());
    ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
    const Candidate* best = nullptr;
    double seconds = 0;
    std::optional<PlannedRun> last;  // if it is the best
    for (const Way& way : ways) {
      const Candidate* first = nullptr;
      last.reset();
      last = first_that_fits(way, first);
      const double own = first == nullptr
                             ? 0
                             : last->seconds * (1 + kReluctance * used_reluctantly(first->choices));
      if (first == nullptr || (best != nullptr && own >= seconds)) {
        last.reset();
        continue;
      }
      best = first;
      seconds = own;
    }
    if (best != nullptr && !last) last = around(*best);
    return last;
  }

  // The least that any of them takes, and that the lanes hold.
  PlannedRun smallest() const {
    const bool anew = is_staged() && looks_ == Looks::for_fastest;
    const std::vector<Candidate> least = anew ? staged(0) : std::vector<Candidate>();
    std::vector<const Candidate*> by_bytes;
    for (const Candidate& each : anew ? least : candidates_) by_bytes.push_back(&each);
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

  // Otherwise every rank has the whole model, and a profile of one tells of all.
  bool is_staged() const { return spec_.step.place.pipe > 1 || spec_.step.place.tensor > 1; }

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
      if (leaves_updates(spec_.config, made.step)) {
        programs.push_back(write_settle(spec_.config, made.step, *machine_.device));
      }
      return programs;
    };
    if (!spec_.sampler) {
      made.plans = make_plans(step(), machine_.limits(), made.step.place.ranks());
      return made;
    }
    // Pictures are drawn in the step's bytes, as many at a time as fit there.
    made.sampler = spec_.sampler;
    made.sampler->storage = candidate.choices.storage;
    made.sampler->offload = candidate.choices.offload;
    made.sampler->place = made.step.place;
    made.sampler->shard = candidate.choices.shard;
    for (int64_t& batch = made.sampler->batch;; batch = (batch + 1) / 2) {
      std::vector<Program> programs = step();
      for (Program& p : sampler_programs(spec_.config, *made.sampler, *machine_.device)) {
        programs.push_back(std::move(p));
      }
      made.plans = make_plans(std::move(programs), machine_.limits(), made.step.place.ranks());
      if (batch == 1 || made.plans.arena_bytes <= made.step_plan().bytes) return made;
    }
  }

  const RunSpec& spec_;
  const Machine& machine_;
  const Looks looks_;
  const int64_t outside_;  // of the arena and of the plan
  const std::vector<Candidate> candidates_;
};

}  // namespace

PlannedRun plan_run(const RunSpec& spec, const Machine& machine) {
  return plan_phases(spec, [&](const RunSpec& one) { return Planner(one, machine).plan(); });
}

std::optional<PlannedRun> plan_run_if_it_fits(const RunSpec& spec, const Machine& machine) {
  return Planner(spec, machine).plan_if_it_fits();
}

PlannedRun plan_run_and_floor(const RunSpec& spec, const Machine& machine) {
  const int64_t floor = floor_of(spec, machine);  // first: its plan is gone before the other's
  PlannedRun planned = plan_run(spec, machine);
  planned.floor_bytes = planned.fits ? std::min(floor, planned.most_bytes()) : floor;
  return planned;
}

int64_t floor_of(const RunSpec& spec, const Machine& machine) {
  return floor_of_phases(spec, [&](const RunSpec& one) {
    return Planner(one, machine, Planner::Looks::for_least).floor_bytes();
  });
}

PlannedRun plan_fitting_run(const RunSpec& spec, const Machine& machine) {
  PlannedRun planned = plan_run(spec, machine);
  if (!planned.fits) refuse_budget(spec, planned, machine);
  return planned;
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
  const int64_t own = (samples + sampler.place.ranks() - 1) / sampler.place.ranks();
  sampler.batch = std::min(own, sampler.batch);
  double once = 0;
  for (const Program& program : sampler_programs(config, sampler, *machine.device)) {
    // Weights are on their way while the layers before them work.
    double bringing = 0;
    for (const Op& op : program.ops) {
      const auto* exchange = std::get_if<Exchange>(&op.params);
      if (exchange == nullptr || exchange->sends() || !exchange->begins()) continue;
      bringing += machine.link.seconds(exchange->bytes());
    }
    once += (program.name == kSamplerProgram ? sampler.steps : 1) *
            std::max(bringing, predicted_seconds(program, machine));
  }
  const int64_t batches = (own + sampler.batch - 1) / sampler.batch;
  return static_cast<double>(batches) * once;
}

LargestBatch largest_batch(const std::function<RunSpec(int64_t batch)>& spec_of,
                           const Machine& machine) {
  if (spec_of(1).decisions.cut_tokens.value_or(false)) {
    fail(Exit::usage,
         "--tokens cut contradicts --batch max: the largest is looked for from one sample on, and "
         "one is not cut",
         "leave --tokens out, or give --batch N");
  }
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
