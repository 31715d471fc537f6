#include "model/ranks.h"

#include <algorithm>
#include <cstdlib>

namespace ebb {

Share nth_share(int64_t batch, int64_t n, int64_t count) {
  const int64_t first = n * batch / count;
  return {first, (n + 1) * batch / count - first};
}

int RankPlace::stage_of(const std::string& layer) const {
  if (layer == kEmbedding) return 0;
  if (layer == kFinalLayer) return pipe - 1;
  const int64_t block = std::atoll(layer.c_str() + std::string_view("block").size());
  const auto after = std::upper_bound(cuts.begin(), cuts.end(), block);
  return static_cast<int>(after - cuts.begin());
}

std::vector<int> owners(const std::vector<ParamSpec>& specs, const RankPlace& place, Shard shard) {
  std::vector<double> all(place.pipe), before(place.pipe);
  for (const ParamSpec& spec : specs) {
    if (spec.trained()) all[place.stage_of(spec.layer)] += static_cast<double>(spec.whole_count());
  }
  std::vector<int> found;
  for (const ParamSpec& spec : specs) {
    if (!spec.trained()) continue;
    const int stage = place.stage_of(spec.layer);
    const auto count = static_cast<double>(spec.whole_count());
    const double middle = (before[stage] + count / 2) / all[stage];
    const int group = shard == Shard::off
                          ? place.group()
                          : std::min(place.data - 1, static_cast<int>(middle * place.data));
    found.push_back(place.at(group, stage));
    before[stage] += count;
  }
  return found;
}

std::vector<NormSlot> norm_slots(const std::vector<ParamSpec>& specs, const RankPlace& place,
                                 Shard shard) {
  std::vector<NormSlot> slots;
  for (int part = 0; part < place.tensor; ++part) {
    RankPlace other = place;
    other.rank = place.of_part(part);
    const std::vector<int> owner = owners(specs, other, shard);
    size_t trained = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!specs[i].trained()) continue;
      const int rank = owner[trained++];
      if (part == 0 || specs[i].slice.any()) slots.push_back({i, part, rank});
    }
  }
  return slots;
}

}  // namespace ebb
