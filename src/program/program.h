// A program: every operation of one step over named buffers, in the order in which they run.
// It is the plan's only source: lifetimes, peak, placement, ledger, predicted time and execution
// are all derived from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/op.h"

namespace ebb {

struct Program {
  std::string name;  // "step"
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  std::vector<Buf> inputs;   // the host writes them before each run
  std::vector<Buf> outputs;  // the host reads them after each run

  const Buffer& buffer(Buf b) const { return buffers[b.id]; }
  Buf find(std::string_view name) const;  // absent: an empty handle
  Buf at(std::string_view name) const;    // absent: a Bug
  double flops() const;
};

// The bytes that an op moves between memory and the kernel: reads and writes once, updates twice.
int64_t bytes_moved(const Program& program, const Op& op);

}  // namespace ebb
