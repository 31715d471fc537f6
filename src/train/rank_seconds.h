// Where the time of a step over several ranks has gone, for people and for log.jsonl.
#pragma once

#include <ebb/step_record.h>

#include <cstdint>
#include <string>
#include <vector>

#include "run/executor.h"

namespace ebb {

// Of a step that took one rank so long.
RankSeconds rank_seconds(double seconds, const Standstill& standstill);

// Of several steps.
class RankMeans {
 public:
  void add(const std::vector<RankSeconds>& ranks);
  std::vector<RankSeconds> means() const;  // by rank; nothing of a run that is alone

 private:
  std::vector<RankSeconds> sums_;
  int64_t steps_ = 0;
};

// The rank that computes longest: the others wait for it.
int slowest_rank(const std::vector<RankSeconds>& ranks);
RankSeconds mean_of(const std::vector<RankSeconds>& ranks);

// Lines of at most 80 characters: how the ranks' time divides, and who is slowest. None of none.
std::vector<std::string> rank_lines(const std::vector<RankSeconds>& ranks);

}  // namespace ebb
