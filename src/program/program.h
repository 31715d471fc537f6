// A program: every operation of one step over named buffers, in the order in which they run.
// It is the plan's only source: lifetimes, peak, placement, ledger, predicted time and execution
// are all derived from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program/op.h"

namespace ebb {

// Ops [begin, end) run `count` times. A buffer that ops of one loop alone touch belongs to one time
// round: it is written anew in the next. Loops do not nest.
struct Loop {
  int begin = 0, end = 0;
  int64_t count = 1;
};

struct Program {
  std::string name;  // "step"
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  std::vector<Loop> loops;   // in order
  std::vector<Buf> inputs;   // the host writes them before each run
  std::vector<Buf> outputs;  // the host reads them after each run
  std::vector<int> marks;    // the first op of each stage, as its writer counts stages
  std::vector<int> cuts;     // ops within a stage where it is cut further for what lies away

  const Buffer& buffer(Buf b) const { return buffers[b.id]; }
  // The buffer that holds the bytes: of a view, what it is a part of.
  Buf root(Buf b) const { return buffer(b).is_view() ? buffer(b).view.of : b; }
  // How often each op runs.
  std::vector<int64_t> repeats() const;
  Buf find(std::string_view name) const;  // absent: an empty handle
  Buf at(std::string_view name) const;    // absent: a Bug
  double flops() const;
};

}  // namespace ebb
