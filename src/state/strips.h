// Tensors of which ranks have parts, and how files have them whole.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/slices.h"

namespace ebb {

// Parts of a tensor come together in strips, one behind the other in the file. A strip is made of
// rows, and each of these of a run of every part, in their order.
struct Strip {
  int64_t rows;
  std::vector<Share> own;  // by part: numbers of its own
};

// Those of several rows, which are put together in memory, have no more bytes than this.
void each_strip(const std::vector<Slice>& parts, int64_t most_bytes,
                const std::function<void(const Strip& strip)>& body);

// The tensors that the ranks of a stage have parts of.
class CutTensors {
 public:
  CutTensors(const DitConfig& config, RankPlace place);
  // The parts of a tensor, as files name it, by their number; null: it lies whole with its owner.
  const std::vector<Slice>* find(const std::string& tensor) const;

 private:
  std::map<std::string, std::vector<Slice>> parts_;  // by parameter
};

}  // namespace ebb
