#include "plan/phases.h"

#include <algorithm>
#include <optional>

namespace ebb {

namespace {

RunSpec with_code(RunSpec spec, const ExchangeCode& code) {
  spec.decisions.exchange = code;
  spec.decisions.exchange_warmup = 0;
  return spec;
}

std::vector<ExchangePhase> phases_of(const Decisions& d) {
  if (!d.exchange) return {};
  return exchange_phases(*d.exchange, d.exchange_warmup);
}

// All phases with the choices that one of them, the leader, would make for all. One plan at a time
// is kept: that of the phase that takes most is made once more.
class Phases {
 public:
  using PlanOne = std::function<PlannedRun(const RunSpec& one)>;
  Phases(const RunSpec& spec, std::vector<ExchangePhase> phases, const PlanOne& plan_one)
      : spec_(spec), phases_(std::move(phases)), plan_one_(plan_one) {}

  PlannedRun plan() {
    const size_t tight = plan_led_by(most_sent());
    if (!fit_ && tight != most_sent()) plan_led_by(tight);
    PlannedRun made = plan_one_(settled_[most_]);
    made.fits = fit_;
    // Looking for the choices may have taken more than any phase does.
    const int64_t more = std::max<int64_t>(0, looked_ - made.most_bytes());
    made.outside_bytes += more;
    for (RankBytes& rank : made.ranks) rank.process_bytes += more;
    made.phases = std::move(planned_);
    return made;
  }

 private:
  // Of fewer and fewer numbers the first; else what waits to be sent takes memory at the end.
  size_t most_sent() const { return phases_.back().code.is_few() ? 0 : phases_.size() - 1; }

  // The first phase that does not fit; if all do, the leader.
  size_t plan_led_by(size_t leader) {
    RunSpec alike = spec_;
    const PlannedRun led = plan_one_(with_code(spec_, phases_[leader].code));
    settle(alike.decisions, led.step.choices);
    looked_ = std::max(looked_, led.most_bytes());
    settled_.clear();
    planned_.clear();
    fit_ = led.fits;
    size_t tight = leader;
    most_ = 0;
    for (size_t i = 0; i < phases_.size(); ++i) {
      settled_.push_back(with_code(alike, phases_[i].code));
      const PlannedRun made = plan_one_(settled_.back());
      planned_.push_back({phases_[i].begin, exchange_text(phases_[i].code), made.most_bytes(),
                          made.most_sent_bytes(), made.seconds});
      if (made.most_bytes() > planned_[most_].process_bytes) most_ = i;
      if (!made.fits && std::exchange(fit_, false)) tight = i;
    }
    return tight;
  }

  const RunSpec& spec_;
  const std::vector<ExchangePhase> phases_;
  const PlanOne& plan_one_;
  std::vector<RunSpec> settled_;
  std::vector<PlannedPhase> planned_;
  size_t most_ = 0;     // the one that takes most
  int64_t looked_ = 0;  // bytes of the process while choices were looked for
  bool fit_ = true;
};

}  // namespace

RunSpec after_steps(RunSpec spec, int64_t steps) {
  const Decisions& d = spec.decisions;
  if (!d.exchange) return spec;
  return with_code(spec, exchange_after(*d.exchange, d.exchange_warmup, steps));
}

PlannedRun plan_phases(const RunSpec& spec,
                       const std::function<PlannedRun(const RunSpec& one)>& plan_one) {
  RunSpec decided = spec;
  if (!spec.decisions.exchange && spec.decisions.exchange_warmup > 0) {
    // The planner's own choice, by what it is after the warm-up.
    PlannedRun chosen = plan_one(spec);
    decided.decisions.exchange = chosen.step.choices.storage.exchange;
    if (phases_of(decided.decisions).size() < 2) return chosen;
  }
  std::vector<ExchangePhase> phases = phases_of(decided.decisions);
  if (phases.size() < 2) return plan_one(spec);
  check_decisions(decided.decisions, spec.config, spec.step);  // by the name that the user gave
  return Phases(decided, std::move(phases), plan_one).plan();
}

int64_t floor_of_phases(const RunSpec& spec,
                        const std::function<int64_t(const RunSpec& one)>& floor_of_one) {
  const std::vector<ExchangePhase> phases = phases_of(spec.decisions);
  if (phases.size() < 2) return floor_of_one(spec);
  check_decisions(spec.decisions, spec.config, spec.step);
  int64_t floor = 0;
  for (const ExchangePhase& phase : phases) {
    floor = std::max(floor, floor_of_one(with_code(spec, phase.code)));
  }
  return floor;
}

}  // namespace ebb
