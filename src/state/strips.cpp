#include "state/strips.h"

#include <algorithm>

namespace ebb {

void each_strip(const std::vector<Slice>& parts, int64_t most_bytes,
                const std::function<void(const Strip& strip)>& body) {
  const Shape& whole = parts[0].whole;
  const int64_t columns = element_count(whole) / whole[0];
  std::vector<Share> own(parts.size());
  if (!parts[0].columns) {
    for (size_t run = 0; run < parts[0].runs.size(); ++run) {
      for (size_t p = 0; p < parts.size(); ++p) {
        own[p] = {own[p].first + own[p].count, parts[p].runs[run].count * columns};
      }
      body({1, own});
    }
    return;
  }
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(float));
  const int64_t together = std::max<int64_t>(1, most_bytes / row_bytes);
  for (int64_t row = 0; row < whole[0]; row += together) {
    const int64_t rows = std::min(together, whole[0] - row);
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t width = parts[p].runs[0].count;
      own[p] = {row * width, rows * width};
    }
    body({rows, own});
  }
}

CutTensors::CutTensors(const DitConfig& config, RankPlace place) {
  if (place.tensor == 1) return;
  for (int part = 0; part < place.tensor; ++part) {
    place.rank = place.of_part(part);
    for (const ParamSpec& spec : sliced_parameters(config, place)) {
      if (spec.slice.any()) parts_[spec.name].push_back(spec.slice);
    }
  }
}

const std::vector<Slice>* CutTensors::find(const std::string& tensor) const {
  auto found = parts_.find(tensor);
  if (found == parts_.end()) found = parts_.find(tensor.substr(tensor.find('.') + 1));
  return found == parts_.end() ? nullptr : &found->second;
}

}  // namespace ebb
