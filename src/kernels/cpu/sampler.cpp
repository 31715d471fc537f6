#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

void run(const LabelsAndNull& op, const Call& call) {
  for (int64_t b = 0; b < op.B; ++b) {
    call.write<int32_t>(0)[b] = call.read<int32_t>(0)[b];
    call.write<int32_t>(0)[op.B + b] = op.null_label;
  }
}

void run(const Guide& op, const Call& call) {
  const int64_t size = op.channels * op.n;
  const float* with = call.read(0);
  const float* without = with + op.B * size;
  const float scale = call.scalars->guidance;
  parallel_range(op.B, 1, size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * size; i < end * size; ++i) {
      const bool guided = i % size < op.guided * op.n;
      call.write(0)[i] = guided ? std::fma(scale, with[i] - without[i], without[i]) : with[i];
    }
  });
}

void run(const DiffusionStep& op, const Call& call) {
  const int64_t in = op.C * op.n;
  const int64_t out = op.learn_sigma ? 2 * in : in;
  const auto& c = call.scalars->coef;
  parallel_range(op.B * in, 64, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i / in * out + i % in;
      const float x = call.read(0)[i];
      float eps = call.read(1)[at];
      float x0 = std::fma(-c[1], eps, c[0] * x);
      if (op.clip && (x0 < -1 || x0 > 1)) {
        x0 = std::clamp(x0, -1.0f, 1.0f);
        eps = (c[0] * x - x0) / c[1];
      }
      float next = std::fma(c[4], eps, std::fma(c[2], x0, c[3] * x));
      if (op.noisy) {
        const float f = op.learn_sigma ? 0.5f * (call.read(1)[at + in] + 1) : 0.0f;
        const float logvar = std::fma(f, c[6], (1 - f) * c[5]);
        next = std::fma(std::exp(0.5f * logvar), call.read(2)[i], next);
      }
      call.write(0)[i] = next;
    }
  });
}

void run(const FlowStep& op, const Call& call) {
  const int64_t in = op.C * op.n;
  const int64_t out = op.learn_sigma ? 2 * in : in;
  const auto& c = call.scalars->coef;
  parallel_range(op.B * in, 64, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i / in * out + i % in;
      float next = std::fma(c[op.first], call.read(1)[at], call.read(0)[i]);
      if (op.second) next = std::fma(c[op.first + 1], call.read(2)[at], next);
      call.write(0)[i] = next;
    }
  });
}

}  // namespace ebb::cpu
