#include "program/program.h"

#include "base/error.h"

namespace ebb {

const char* Op::kind() const {
  return std::visit([](const auto& p) { return p.kName; }, params);
}

double Op::flops() const {
  return std::visit([](const auto& p) { return p.flops(); }, params);
}

Buf Program::find(std::string_view wanted) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].name == wanted) return Buf{static_cast<int32_t>(i)};
  }
  return {};
}

Buf Program::at(std::string_view wanted) const {
  const Buf found = find(wanted);
  require(static_cast<bool>(found), "program {}: no buffer named {}", name, wanted);
  return found;
}

std::vector<int64_t> Program::repeats() const {
  std::vector<int64_t> times(ops.size(), 1);
  for (const Loop& loop : loops) {
    for (int i = loop.begin; i < loop.end; ++i) times[i] = loop.count;
  }
  return times;
}

double Program::flops() const {
  const std::vector<int64_t> times = repeats();
  double total = 0;
  for (size_t i = 0; i < ops.size(); ++i) total += static_cast<double>(times[i]) * ops[i].flops();
  return total;
}

}  // namespace ebb
