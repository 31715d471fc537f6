#include "plan/cost.h"

#include <algorithm>

namespace ebb {

namespace {
int64_t bytes_moved(const Program& program, const Op& op) {
  int64_t bytes = 0;
  for (const Buf b : op.reads) bytes += program.buffer(b).bytes();
  for (const Buf b : op.writes) bytes += program.buffer(b).bytes();
  for (const Buf b : op.updates) bytes += 2 * program.buffer(b).bytes();
  return bytes;
}
}  // namespace

double predicted_seconds(const Program& program, const Rates& rates) {
  double seconds = 0;
  for (const Op& op : program.ops) {
    seconds += std::max(op.flops() / rates.flops,
                        static_cast<double>(bytes_moved(program, op)) / rates.bytes);
  }
  return seconds;
}

}  // namespace ebb
