#include "plan/search.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "plan/profile.h"
#include "plan/schedules.h"

namespace ebb {

namespace {

// Every combination of what the techniques offer, in the table's order: those of the state alone,
// or all others.
std::vector<Choices> combinations(const SearchCase& c, Choices start, bool of_state) {
  std::vector<Choices> all = {std::move(start)};
  for (const Technique& t : techniques()) {
    if (!t.offer || t.of_state != of_state) continue;
    std::vector<Choices> more;
    for (const Choices& each : all) {
      for (Choices& offered : t.offer(each, c)) more.push_back(std::move(offered));
    }
    all = std::move(more);
  }
  return all;
}

// The fastest candidate for every number of bytes. One that comes later must be better.
class Front {
 public:
  // `reluctance`: of the choices.
  void offer(const Choices& choices, const Schedule& schedule, const Estimate& e, int reluctance) {
    const double seconds = e.seconds * (1 + kReluctance * reluctance);
    Candidate offered{choices, e.bytes, e.seconds, e.own_bytes};
    const int64_t bytes = offered.total_bytes();
    auto after = made_.upper_bound(seconds);
    if (after != made_.begin() && std::prev(after)->second.total_bytes() <= bytes) return;
    while (after != made_.end() && after->second.total_bytes() >= bytes) after = made_.erase(after);
    offered.choices.schedule = schedule;
    made_[seconds] = std::move(offered);
  }

  using Ordered = std::multimap<double, Candidate>;  // by seconds, reluctance counted
  void take(Ordered& to) {
    to.merge(made_);
    made_.clear();
  }

 private:
  std::map<double, Candidate> made_;  // by seconds, reluctance counted; their bytes fall
};

// The fastest keep-sets for micro-batches of each size, stored in each way.
class KeepOptions {
 public:
  explicit KeepOptions(const SearchCase& c) : c_(c) {}

  const std::vector<KeepSet>& of(const Choices& way) {
    const int64_t size = micro_batches(c_.spec.segments()[0].count, way.micro_batch)[0].size;
    const auto [at, added] = known_.try_emplace({size, way.storage.activation});
    if (!added) return at->second;
    std::vector<KeepSet>& options = at->second;
    options = keep_options(c_.config, size, way, c_.machine);
    const auto& decided = c_.decisions.keep;
    if (decided && std::find(options.begin(), options.end(), *decided) == options.end()) {
      options.insert(options.begin() + 1, *decided);
    }
    return options;
  }

 private:
  const SearchCase& c_;
  std::map<std::pair<int64_t, DType>, std::vector<KeepSet>> known_;
};

// One for each lane that holds only so much, and one for all else: what goes beyond such a lane may
// not fit there, so that nothing else gives way to it. And one for each way to shard and to code
// gradients, since what ranks exchange is not in the estimate.
class Fronts {
 public:
  explicit Fronts(const Machine& machine) : machine_(machine) {}

  Front& of(const Choices& choices) {
    const Offload& o = choices.offload;
    const bool bounded = o.any() && machine_.lanes[o.lane].most_bytes != LaneKind{}.most_bytes;
    return fronts_[{bounded ? o.lane : kOnDevice, choices.shard,
                    exchange_text(choices.storage.exchange)}];
  }

  void note_looking(int64_t bytes) { looking_bytes_ = std::max(looking_bytes_, bytes); }

  std::vector<Candidate> take() {
    Front::Ordered sorted;
    for (auto& [kind, front] : fronts_) front.take(sorted);
    std::vector<Candidate> all;
    all.reserve(sorted.size());
    for (auto& [seconds, candidate] : sorted) {
      candidate.looking_bytes = looking_bytes_;
      all.push_back(std::move(candidate));
    }
    return all;
  }

 private:
  const Machine& machine_;
  int64_t looking_bytes_ = 0;
  std::map<std::tuple<Home, Shard, std::string>, Front> fronts_;
};

// Every schedule of one way to carry out the step, with each way to store the state.
void offer_schedules(Fronts& fronts, const SearchCase& c, const Choices& way,
                     const std::vector<KeepSet>& keep) {
  Front& front = fronts.of(way);
  const Profile profile = profile_step(c.config, c.spec, way, keep, c.machine);
  fronts.note_looking(profile.looking_bytes);
  const Limits limits = c.machine.limits();
  const auto state = [&](const Choices& choices) -> Estimate {
    return {state_bytes(c.config, c.spec, choices, limits),
            c.spec.update ? update_seconds(c.config, c.spec, choices, c.machine) : 0};
  };
  const Estimate own = state(way);
  const std::vector<Choices> stored = combinations(c, way, true);
  std::vector<Estimate> more;
  std::vector<int> reluctance;
  for (const Choices& each : stored) {
    const Estimate e = state(each);
    more.push_back({e.bytes - own.bytes, e.seconds - own.seconds});
    reluctance.push_back(used_reluctantly(each));
  }
  const auto offer = [&](const Schedule& schedule) {
    const Estimate e = estimate(profile, c.config, schedule);
    for (size_t i = 0; i < stored.size(); ++i) {
      front.offer(stored[i], schedule,
                  {e.bytes + more[i].bytes, e.seconds + more[i].seconds, e.own_bytes},
                  reluctance[i]);
    }
  };
  if (c.decisions.keep) {
    offer(plain_schedule(std::vector<KeepSet>(c.config.depth(), *c.decisions.keep)));
  } else {
    visit_schedules(profile, c.config.depth(), offer);
  }
}

}  // namespace

std::vector<Choices> every_choice(const SearchCase& c) {
  std::vector<Choices> all;
  for (const Choices& way : combinations(c, {}, false)) {
    for (Choices& each : combinations(c, way, true)) all.push_back(std::move(each));
  }
  return all;
}

std::vector<Candidate> step_candidates(const DitConfig& config, const StepSpec& spec,
                                       const Decisions& decisions, const Machine& machine) {
  check_decisions(decisions, config, spec);
  check_countable(config, spec.batch);
  const SearchCase c{config, spec, decisions, machine};
  Fronts fronts(machine);
  KeepOptions keep(c);
  for (const Choices& way : combinations(c, {}, false)) {
    offer_schedules(fronts, c, way, keep.of(way));
  }
  return fronts.take();
}

}  // namespace ebb
