// What buffers an op takes, in order, with their types and shapes: ops.h's comments as data. The
// Builder checks every emitted op against it; tests make buffers from it.
#pragma once

#include <vector>

#include "program/buffer.h"
#include "program/ops.h"

namespace ebb {

struct Arg {
  const char* name;
  DType type;
  Shape shape;
  bool or_more = false;  // the buffer may hold more elements: the op touches only some of them
  std::vector<int> over =
      {};  // of a write: the reads whose place it may take, each element read first
};

struct Signature {
  std::vector<Arg> reads, writes, updates;
};

Signature signature(const OpParams& params);

}  // namespace ebb
