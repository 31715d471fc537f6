#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

constexpr int64_t kNormChunk = 8192;  // elements summed into one partial result
int64_t norm_chunks(int64_t n) { return (n + kNormChunk - 1) / kNormChunk; }

}  // namespace

int64_t scratch(const SquaredNorm& op) { return norm_chunks(op.n) * 8; }

void run(const SquaredNorm& op, const Call& call) {
  const float* g = call.read(0);
  auto* partial = reinterpret_cast<double*>(call.scratch.data());
  parallel_range(norm_chunks(op.n), 1, kNormChunk, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      double lanes[8] = {};
      const int64_t last = std::min(op.n, (chunk + 1) * kNormChunk);
      int64_t i = chunk * kNormChunk;
      for (; i + 8 <= last; i += 8) {
        for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(g[i + l]) * g[i + l];
      }
      for (; i < last; ++i) lanes[0] += static_cast<double>(g[i]) * g[i];
      double total = 0;
      for (const double lane : lanes) total += lane;
      partial[chunk] = total;
    }
  });
  double total = 0;
  for (int64_t chunk = 0; chunk < norm_chunks(op.n); ++chunk) total += partial[chunk];
  call.write<double>(0)[op.slot] = total;
}

void run(const ClipScale& op, const Call& call) {
  double total = 0;
  for (int64_t i = 0; i < op.count; ++i) total += call.read<double>(0)[op.first + i];
  const double norm = std::sqrt(total);
  call.write(0)[0] = static_cast<float>(norm);
  // The 1e-6 is PyTorch's, so that runs can be compared.
  call.write(0)[1] =
      op.limit > 0 ? static_cast<float>(std::min(1.0, op.limit / (norm + 1e-6))) : 1.0f;
}

void run(const AdamW& op, const Call& call) {
  const float* g = call.read(0);
  const float* clip = call.read(1);
  if (!std::isfinite(clip[0])) return;
  float* w = call.update(0);
  float* m = call.update(1);
  float* v = call.update(2);
  float* ema = op.ema ? call.update(3) : nullptr;
  const Scalars& s = *call.scalars;
  const float factor = clip[1];
  const auto beta2 = static_cast<float>(op.beta2);
  const auto share1 = static_cast<float>(1 - op.beta1);
  const auto share2 = static_cast<float>(1 - op.beta2);
  const auto eps = static_cast<float>(op.eps);
  const auto keep = static_cast<float>(1 - s.lr * op.decay);
  const float rate = s.lr / s.bias1;
  const float root_bias2 = std::sqrt(s.bias2);
  const auto ema_share = static_cast<float>(1 - s.ema_decay);
  parallel_range(op.n, 4096, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float grad = g[i] * factor;
      m[i] = m[i] + share1 * (grad - m[i]);
      v[i] = beta2 * v[i] + share2 * grad * grad;
      w[i] = w[i] * keep - rate * m[i] / (std::sqrt(v[i]) / root_bias2 + eps);
    }
    if (ema) {
      for (int64_t i = begin; i < end; ++i) ema[i] += ema_share * (w[i] - ema[i]);
    }
  });
}

}  // namespace ebb::cpu
