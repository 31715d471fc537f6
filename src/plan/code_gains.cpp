#include "plan/code_gains.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/rank_check.h"
#include "plan/rank_time.h"
#include "plan/technique_kinds.h"

namespace ebb {

namespace {

// The programs of all ranks with gradients coded so, or as they are.
class Played {
 public:
  Played(const DitConfig& config, StepSpec step, const ExchangeCode& code, const Machine& machine)
      : link_(machine.link) {
    step.choices.storage.exchange = code;
    step.choices.release = false;
    // As they are, a rank that goes batch by batch would wait for all of the one before it.
    if (!code.any() && step.place.pipe == 1) {
      step.choices.layer_major = accumulates(step, step.choices.micro_batch);
    }
    std::vector<Program> programs;
    for (step.place.rank = 0; step.place.rank < step.place.ranks(); ++step.place.rank) {
      programs.push_back(write_step(config, step, *machine.device));
      scripts_.push_back(script_of(programs.back(), machine));
    }
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    const std::vector<int64_t> sent = check_ranks(all);
    sent_bytes_ = *std::max_element(sent.begin(), sent.end());
  }

  double seconds(double bits_per_second) const {
    Link link = link_;
    link.bytes_per_second = bits_per_second / 8;
    return step_seconds(scripts_, link);
  }
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  const Link link_;
  std::vector<RankScript> scripts_;
  int64_t sent_bytes_ = 0;
};

// The rate at which both are as fast: below it the code is faster.
double even_rate(const Played& coded, const Played& plain) {
  const auto pays = [&](double rate) { return coded.seconds(rate) < plain.seconds(rate); };
  double low = 1e5, high = 1e13;
  if (!pays(low)) return 0;
  if (pays(high)) return std::numeric_limits<double>::infinity();
  while (high / low > 1.02) {
    const double middle = std::sqrt(low * high);
    (pays(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

std::vector<CodeGain> code_gains(const DitConfig& config, const StepSpec& step,
                                 const Machine& machine) {
  const RankPlace& place = step.place;
  std::vector<CodeGain> gains;
  if (place.data == 1 || place.pipe > 1 || place.tensor > 1 || step.leaves > 0 || !step.update)
    return gains;
  const Played plain(config, step, {}, machine);
  const Storage& storage = step.choices.storage;
  const bool signs = step.optimizer == Optimizer::adamw && storage.galore_rank == 0 &&
                     storage.moments == Moments::f32;
  for (const ExchangeCode& code : codes_to_tell()) {
    if (code.is_signs() && !signs) continue;
    const Played coded(config, step, code, machine);
    gains.push_back({exchange_text(code), coded.sent_bytes(),
                     coded.seconds(8 * machine.link.bytes_per_second), even_rate(coded, plain)});
  }
  return gains;
}

}  // namespace ebb
