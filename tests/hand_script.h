// What a rank does, written by hand.
#pragma once

#include "plan/rank_time.h"

namespace ebb {

// A script by hand; messages are named by their number.
class Script {
 public:
  Script& compute(double seconds) {
    made_.steps.push_back({seconds, -1, RankStep::Kind::compute});
    return *this;
  }
  Script& send(int peer, int64_t bytes, int channel = 0) {
    return begin({"send", bytes, peer, channel, true});
  }
  Script& receive(int peer, int64_t bytes, int channel = 0) {
    return begin({"receive", bytes, peer, channel, false});
  }
  Script& wait(int message) {
    made_.steps.push_back({0, message, RankStep::Kind::wait});
    return *this;
  }
  Script& last() { return wait(static_cast<int>(made_.messages.size()) - 1); }
  operator RankScript() const { return made_; }  // NOLINT(google-explicit-constructor)

 private:
  Script& begin(const RankMessage& message) {
    made_.steps.push_back({0, static_cast<int>(made_.messages.size()), RankStep::Kind::begin});
    made_.messages.push_back(message);
    return *this;
  }
  RankScript made_;
};

inline constexpr Link kLink{100, 0.5};  // bytes per second, seconds

}  // namespace ebb
