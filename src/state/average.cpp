#include "state/average.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

constexpr double kHarmless = 0.01;  // of the start in the average

// The value of "key = value", a line of settings.toml; empty: there is none.
std::string value_of(const std::string& settings, const std::string& key) {
  const std::string begin = fmt::format("{} = ", key);
  for (std::string_view rest = settings; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (line.starts_with(begin)) return std::string(line.substr(begin.size()));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return "";
}

}  // namespace

double average_decay(const AverageRule& rule, int64_t k) {
  if ((k + 1) % rule.every != 0) return 1;
  const auto n = static_cast<double>(k + 1);
  const double decay = rule.ramp ? std::min(rule.decay, n / (n + 9)) : rule.decay;
  return std::pow(decay, static_cast<double>(rule.every));
}

double start_share(const AverageRule& rule, int64_t steps) {
  const int64_t averages = steps / rule.every;
  if (!rule.ramp) return std::pow(rule.decay, static_cast<double>(averages * rule.every));
  double share = 1;
  // The ramp makes it fall like n^-9: a few hundred steps are enough to reach nothing.
  for (int64_t i = 1; i <= averages && share > kNoShare; ++i) {
    share *= average_decay(rule, i * rule.every - 1);
  }
  return share;
}

std::string average_note(double share, int64_t steps) {
  if (!(share > kHarmless)) return "";
  std::string until;
  // It falls by the same factor every step, as far as the share itself can tell.
  if (share < 1 && steps > 0) {
    const double wanted = static_cast<double>(steps) * std::log(kHarmless) / std::log(share);
    if (wanted < 1e15) until = fmt::format(" until about step {}", std::llround(wanted));
  }
  return fmt::format(
      "the average still holds {:.0f} % of the random start: --weights raw draws better{}",
      100 * share, until);
}

AverageRule average_rule_in(const std::string& settings) {
  AverageRule rule;
  rule.ramp = value_of(settings, "ema-ramp") == "true";
  try {
    const std::string decay = value_of(settings, "ema");
    const std::string every = value_of(settings, "ema-every");
    if (!decay.empty()) rule.decay = std::clamp(parse_real(decay, "ema"), 0.0, 1.0);
    if (!every.empty())
      rule.every = std::clamp<int64_t>(parse_int(every, "ema-every"), 1, int64_t{1} << 31);
  } catch (const Error&) {  // a file of whatever origin: the note is not worth a refusal
    return {};
  }
  return rule;
}

}  // namespace ebb
