#include "plan/fastest_place.h"

#include <optional>
#include <set>

#include "base/error.h"

namespace ebb {

namespace {

bool is_possible(const RunSpec& spec) {
  const RankPlace& place = spec.step.place;
  const int leaves = spec.step.leaves;
  if (place.data > spec.step.batch || place.pipe > spec.config.depth()) return false;
  const bool codes = spec.decisions.exchange && spec.decisions.exchange->any();
  if (place.data > 1 && place.pipe > 1 && leaves == 0 && !codes) return false;
  return leaves == 0 || leaves % place.data == 0;
}

class PlaceSearch {
 public:
  PlaceSearch(const RankPlace& place, const std::function<RunSpec(const RankPlace& place)>& spec_of,
              const Machine& machine)
      : place_(place), spec_of_(spec_of), machine_(machine) {}

  // Groups and stages are exact, and send less than parts of blocks do: those are planned only
  // where nothing else fits, few parts first, which send less than more of them.
  RankPlace find() {
    const int ranks = place_.ranks();
    for (int parts = 1; parts <= ranks && !best_; ++parts) {
      each_of(parts, [&](const RankPlace& other, const RunSpec& spec) {
        const std::optional<PlannedRun> made = plan_run_if_it_fits(spec, machine_);
        if (made && (!best_ || made->seconds < seconds_)) note(other, *made);
        most_parts_ = parts;
      });
    }
    if (!best_) find_smallest();
    if (!best_ && refusal_) throw Error(*refusal_);
    return best_.value_or(place_);
  }

 private:
  // Of those without parts of blocks, and of those with the most.
  void find_smallest() {
    for (const int parts : std::set<int>{1, most_parts_}) {
      each_of(parts, [&](const RankPlace& other, const RunSpec& spec) {
        const PlannedRun made = plan_run(spec, machine_);
        if (!best_ || made.most_bytes() < bytes_) note(other, made);
      });
    }
  }

  // Every layout with so many parts of blocks that the settings allow.
  template <typename Body>
  void each_of(int parts, Body body) {
    if (place_.ranks() % parts != 0) return;
    const int groups = place_.ranks() / parts;
    for (int data = groups; data >= 1; --data) {
      if (groups % data != 0) continue;
      RankPlace other{data, groups / data, place_.rank};
      other.tensor = parts;
      try {
        const RunSpec spec = spec_of_(other);
        if (is_possible(spec)) body(other, spec);
      } catch (const Error& e) {
        if (e.code() != Exit::usage) throw;
        if (parts == 1 && !refusal_) refusal_ = e;
      }
    }
  }

  void note(const RankPlace& other, const PlannedRun& made) {
    best_ = other;
    seconds_ = made.seconds;
    bytes_ = made.most_bytes();
  }

  const RankPlace& place_;
  const std::function<RunSpec(const RankPlace& place)>& spec_of_;
  const Machine& machine_;
  std::optional<RankPlace> best_;
  double seconds_ = 0;
  int64_t bytes_ = 0;
  int most_parts_ = 1;            // that the run can have
  std::optional<Error> refusal_;  // of the first one that goes against what the user has decided
};

}  // namespace

RankPlace fastest_place(const RankPlace& place,
                        const std::function<RunSpec(const RankPlace& place)>& spec_of,
                        const Machine& machine) {
  return PlaceSearch(place, spec_of, machine).find();
}

}  // namespace ebb
