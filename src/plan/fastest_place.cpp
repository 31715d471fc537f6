#include "plan/fastest_place.h"

#include <optional>

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

}  // namespace

RankPlace fastest_place(const RankPlace& place,
                        const std::function<RunSpec(const RankPlace& place)>& spec_of,
                        const Machine& machine) {
  const int ranks = place.ranks();
  RankPlace best = place;
  bool any = false, fits = false;
  double seconds = 0;
  int64_t bytes = 0;
  std::optional<Error> refusal;  // of the first one that goes against what the user has decided
  for (int data = ranks; data >= 1; --data) {
    if (ranks % data != 0) continue;
    const RankPlace other{data, ranks / data, place.rank};
    const RunSpec spec = spec_of(other);
    if (!is_possible(spec)) continue;
    PlannedRun made;
    try {
      made = plan_run(spec, machine);
    } catch (const Error& e) {
      if (e.code() != Exit::usage) throw;
      if (!refusal) refusal = e;
      continue;
    }
    const bool better = !any || (made.fits != fits ? made.fits
                                 : fits            ? made.seconds < seconds
                                                   : made.most_bytes() < bytes);
    if (!better) continue;
    any = true;
    best = other;
    fits = made.fits;
    seconds = made.seconds;
    bytes = made.most_bytes();
  }
  if (!any && refusal) throw Error(*refusal);
  return best;
}

}  // namespace ebb
