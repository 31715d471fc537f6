// How tests run the ops that code gradients for other ranks.
#pragma once

#include "op_case.h"

namespace ebb {

inline Scalars with_loss_scale(float loss_scale = 1024) {
  Scalars s = test_scalars();
  s.loss_scale = loss_scale;
  return s;
}

inline Scalars at_step(int64_t step) {
  Scalars s = test_scalars();
  s.step = step;
  return s;
}

inline OpValues<double> outcome(const OpParams& op, const OpValues<double>& in,
                                const Scalars& scalars = test_scalars()) {
  return run_on_device(op, in, scalars, std::byte{0xff});
}

// Of an op that writes `writes` buffers, besides what they are made of.
inline OpValues<double> operands(const OpParams& op, std::vector<Column> reads,
                                 std::vector<Column> updates) {
  OpValues<double> v{std::move(reads), {}, std::move(updates)};
  for (const Arg& arg : signature(op).writes) v.writes.push_back(unset_column(arg));
  return v;
}

// What an open gate makes of a gradient.
inline Column gated(const Column& g, const Column& residual) {
  Column x;
  for (size_t i = 0; i < g.size(); ++i) {
    x.push_back(std::fma(static_cast<float>(g[i]), static_cast<float>(kOpenGate[1]),
                         static_cast<float>(residual[i])));
  }
  return x;
}

}  // namespace ebb
