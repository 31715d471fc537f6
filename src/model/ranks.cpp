#include "model/ranks.h"

#include <algorithm>

namespace ebb {

Share RankPlace::share(int64_t batch) const {
  const int64_t each = batch / ranks, more = batch % ranks;
  const int64_t first = rank * each + std::min<int64_t>(rank, more);
  return {first, each + (rank < more ? 1 : 0)};
}

std::vector<int> owners(const std::vector<ParamSpec>& specs, int ranks) {
  double all = 0, before = 0;
  for (const ParamSpec& spec : specs) all += spec.trained() ? static_cast<double>(spec.count()) : 0;
  std::vector<int> found;
  for (const ParamSpec& spec : specs) {
    if (!spec.trained()) continue;
    const auto count = static_cast<double>(spec.count());
    const double middle = (before + count / 2) / all;
    found.push_back(std::min(ranks - 1, static_cast<int>(middle * ranks)));
    before += count;
  }
  return found;
}

int fullest_rank(const std::vector<ParamSpec>& specs, int ranks) {
  const std::vector<int> owner = owners(specs, ranks);
  std::vector<int64_t> numbers(ranks);
  size_t next = 0;
  for (const ParamSpec& spec : specs) {
    if (spec.trained()) numbers[owner[next++]] += spec.count();
  }
  return static_cast<int>(std::max_element(numbers.begin(), numbers.end()) - numbers.begin());
}

}  // namespace ebb
