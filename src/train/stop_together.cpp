#include "train/stop_together.h"

#include <iterator>
#include <utility>

namespace ebb {

namespace {

constexpr uint64_t kStop = 1, kFailed = 2;

}  // namespace

uint64_t StopTogether::flags() const {
  return (control_.stop() ? kStop : 0) | (apart_ ? 0 : kFailed);
}

void StopTogether::decide(uint64_t flags_of_all) {
  if ((flags_of_all & kFailed) != 0) agree(*peers_, apart_.failure());
  stopping_ = flags_of_all != 0;
}

bool StopTogether::ask() {
  if (peers_ == nullptr) return control_.stop();
  const bool just_asked = std::exchange(just_asked_, false);
  if (!stopping_ && !just_asked) decide(peers_->any(flags()));
  return stopping_;
}

void StopTogether::ask_after_step(const RankSeconds& own, std::vector<RankSeconds>& ranks) {
  const double seconds[] = {own.computing, own.waiting, own.exchanging};
  std::vector<double> all;
  decide(peers_->any(flags(), seconds, all));
  just_asked_ = true;
  for (size_t i = 0; i < all.size(); i += std::size(seconds)) {
    ranks.push_back({all[i], all[i + 1], all[i + 2]});
  }
}

void StopTogether::apart(const std::function<void()>& part) {
  peers_ == nullptr ? part() : apart_.run(part);
}

}  // namespace ebb
