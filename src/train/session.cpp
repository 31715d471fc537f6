#include "train/session.h"

namespace ebb {

void Session::initialise(uint64_t seed) {
  const auto start = [&](const ParamSpec& spec, const std::string& name) {
    state_.fill(state_.at(name), [&](float* values, int64_t first, int64_t count) {
      initialise_part(values, first, count, spec, seed, config_);
    });
  };
  const bool average = planned_.step.update && planned_.step.ema;
  for (const ParamSpec& spec : parameters(config_)) {
    start(spec, spec.name);
    if (spec.trained() && average) start(spec, kAverage + spec.name);
  }
}

}  // namespace ebb
