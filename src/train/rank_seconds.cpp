#include "train/rank_seconds.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace ebb {

RankSeconds rank_seconds(double seconds, const Standstill& standstill) {
  return {std::max(0.0, seconds - standstill.waiting - standstill.exchanging), standstill.waiting,
          standstill.exchanging};
}

namespace {

bool computes_less(const RankSeconds& a, const RankSeconds& b) { return a.computing < b.computing; }

// A count-th part of another.
void add_share(RankSeconds& to, const RankSeconds& other, int64_t count) {
  const auto n = static_cast<double>(count);
  to.computing += other.computing / n;
  to.waiting += other.waiting / n;
  to.exchanging += other.exchanging / n;
}

}  // namespace

int slowest_rank(const std::vector<RankSeconds>& ranks) {
  const auto slowest = std::max_element(ranks.begin(), ranks.end(), computes_less);
  return static_cast<int>(slowest - ranks.begin());
}

RankSeconds mean_of(const std::vector<RankSeconds>& ranks) {
  RankSeconds mean;
  for (const RankSeconds& rank : ranks) add_share(mean, rank, std::ssize(ranks));
  return mean;
}

void RankMeans::add(const std::vector<RankSeconds>& ranks) {
  sums_.resize(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) add_share(sums_[r], ranks[r], 1);
  ++steps_;
}

std::vector<RankSeconds> RankMeans::means() const {
  std::vector<RankSeconds> means(sums_.size());
  for (size_t r = 0; r < sums_.size(); ++r) add_share(means[r], sums_[r], steps_);
  return means;
}

std::vector<std::string> rank_lines(const std::vector<RankSeconds>& ranks) {
  if (ranks.empty()) return {};
  const RankSeconds mean = mean_of(ranks);
  const double all = mean.computing + mean.waiting + mean.exchanging;
  const auto percent = [&](double seconds) { return all > 0 ? 100 * seconds / all : 0; };
  const int slowest = slowest_rank(ranks);
  const auto fastest = std::min_element(ranks.begin(), ranks.end(), computes_less);
  return {
      fmt::format("ranks: {:.0f} % of the time computing, {:.0f} % waiting for each other, {:.0f} "
                  "% for bytes",
                  percent(mean.computing), percent(mean.waiting), percent(mean.exchanging)),
      fmt::format("slowest: rank {}, {} of computing a step; fastest: rank {}, {}", slowest,
                  format_seconds(ranks[slowest].computing), fastest - ranks.begin(),
                  format_seconds(fastest->computing)),
  };
}

}  // namespace ebb
