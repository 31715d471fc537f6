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

double Program::flops() const {
  double total = 0;
  for (const Op& op : ops) total += op.flops();
  return total;
}

int64_t bytes_moved(const Program& program, const Op& op) {
  int64_t bytes = 0;
  for (const Buf b : op.reads) bytes += program.buffer(b).bytes();
  for (const Buf b : op.writes) bytes += program.buffer(b).bytes();
  for (const Buf b : op.updates) bytes += 2 * program.buffer(b).bytes();
  return bytes;
}

}  // namespace ebb
