// Runs a whole program with the reference twins, in any number type: the model itself in double, or
// in complex numbers for the gradient of a whole step. Every buffer has memory of its own.
#pragma once

#include <limits>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/reference/reference.h"
#include "program/program.h"

namespace ebb {

// Keeps a reference to the program, which must outlive it.
template <typename T>
class ReferenceExecutor {
 public:
  // Residents and inputs start at 0. Everything else starts as NaN, so that reading what no op
  // has written shows.
  explicit ReferenceExecutor(const Program& program) : program_(program) {
    std::vector<bool> given(program.buffers.size());
    for (const Buf b : program.inputs) given[b.id] = true;
    for (size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& b = program.buffers[i];
      const bool zero = b.resident || given[i];
      const double start = zero ? 0 : std::numeric_limits<double>::quiet_NaN();
      // Scratch is the kernels' own: no twin looks at it.
      const bool empty = b.purpose == Purpose::scratch || b.is_view();
      values_.emplace_back(empty ? 0 : b.count(), T(start));
    }
  }

  std::vector<T>& at(Buf b) { return values_[b.id]; }
  std::vector<T>& at(std::string_view name) { return at(program_.at(name)); }
  const std::vector<T>& get(std::string_view name) { return at(name); }

  // values: of any type that T is made from, as many as the buffer has elements.
  template <typename Values>
  void set(std::string_view name, const Values& values) {
    std::vector<T>& to = at(name);
    require(values.size() == to.size(), "{}: {} values given, {} wanted", name, values.size(),
            to.size());
    for (size_t i = 0; i < to.size(); ++i) to[i] = T(values[i]);
  }

  void run(const Scalars& scalars) {
    int next = 0;
    for (const Loop& loop : program_.loops) {
      run_ops(next, loop.begin, 0, scalars);
      for (int64_t i = 0; i < loop.count; ++i) run_ops(loop.begin, loop.end, i, scalars);
      next = loop.end;
    }
    run_ops(next, static_cast<int>(program_.ops.size()), 0, scalars);
  }

 private:
  void run_ops(int begin, int end, int64_t iteration, const Scalars& scalars) {
    const auto place = [&](Buf b) {
      const View& view = program_.buffer(b).view;
      const int64_t size = dtype_bytes(program_.buffer(b).type);
      return at(program_.root(b)).data() + (view.offset + iteration * view.stride) / size;
    };
    for (int i = begin; i < end; ++i) {
      const Op& op = program_.ops[i];
      Refs<T> r;
      for (const Buf b : op.reads) r.reads.push_back(place(b));
      for (const Buf b : op.writes) r.writes.push_back(place(b));
      for (const Buf b : op.updates) r.updates.push_back(place(b));
      r.scalars = &scalars;
      r.iteration = iteration;
      run_reference(op.params, r);
    }
  }

  const Program& program_;
  std::vector<std::vector<T>> values_;
};

}  // namespace ebb
