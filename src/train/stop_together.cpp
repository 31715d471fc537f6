#include "train/stop_together.h"

#include <iterator>
#include <utility>

namespace ebb {

bool StopTogether::ask() {
  if (peers_ == nullptr) return control_.stop();
  const bool just_asked = std::exchange(just_asked_, false);
  if (!stopping_ && !just_asked) stopping_ = peers_->any(control_.stop() ? 1 : 0) != 0;
  return stopping_;
}

void StopTogether::ask_after_step(const RankSeconds& own, std::vector<RankSeconds>& ranks) {
  const double seconds[] = {own.computing, own.waiting, own.exchanging};
  std::vector<double> all;
  stopping_ = peers_->any(control_.stop() ? 1 : 0, seconds, all) != 0;
  just_asked_ = true;
  for (size_t i = 0; i < all.size(); i += std::size(seconds)) {
    ranks.push_back({all[i], all[i + 1], all[i + 2]});
  }
}

}  // namespace ebb
