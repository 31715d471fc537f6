#include "plan/cost.h"

#include <algorithm>

namespace ebb {

double predicted_seconds(const Program& program, const Rates& rates) {
  double seconds = 0;
  for (const Op& op : program.ops) {
    seconds += std::max(op.flops() / rates.flops,
                        static_cast<double>(bytes_moved(program, op)) / rates.bytes);
  }
  return seconds;
}

}  // namespace ebb
