#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

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
      constexpr int kSums = 32;  // side by side: each waits for its own last addition
      double lanes[kSums] = {};
      const int64_t last = std::min(op.n, (chunk + 1) * kNormChunk);
      int64_t i = chunk * kNormChunk;
      for (; i + kSums <= last; i += kSums) {
        for (int l = 0; l < kSums; ++l) lanes[l] += static_cast<double>(g[i + l]) * g[i + l];
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

namespace {

// One pass over w, m, v and, where there is one, the average.
template <bool kAveraged>
void adamw(const AdamW& op, const Call& call) {
  const float* g = call.read(0);
  float* w = call.update(0);
  float* m = call.update(1);
  float* v = call.update(2);
  float* ema = kAveraged ? call.update(3) : nullptr;
  const Scalars& s = *call.scalars;
  const Vec factor = splat(call.read(1)[1]);
  const Vec beta2 = splat(static_cast<float>(op.beta2));
  const Vec share1 = splat(static_cast<float>(1 - op.beta1));
  const Vec share2 = splat(static_cast<float>(1 - op.beta2));
  const Vec eps = splat(static_cast<float>(op.eps));
  const Vec keep = splat(static_cast<float>(1 - s.lr * op.decay));
  const Vec rate = splat(s.lr / s.bias1);
  const Vec correct2 = splat(1.0f / std::sqrt(s.bias2));
  const Vec ema_share = splat(static_cast<float>(1 - s.ema_decay));
  parallel_range(op.n, 4096, 1, [&](int64_t begin, int64_t end) {
    for_lanes(begin, end, [&](int64_t i, auto get, auto put) {
      const Vec grad = get(g + i) * factor;
      const Vec first = get(m + i) + share1 * (grad - get(m + i));
      const Vec second = beta2 * get(v + i) + share2 * grad * grad;
      const Vec next = get(w + i) * keep - rate * first / (sqrt(second) * correct2 + eps);
      put(m + i, first);
      put(v + i, second);
      put(w + i, next);
      if constexpr (kAveraged) put(ema + i, get(ema + i) + ema_share * (next - get(ema + i)));
    });
  });
}

}  // namespace

void run(const AdamW& op, const Call& call) {
  if (!std::isfinite(call.read(1)[0])) return;
  op.ema ? adamw<true>(op, call) : adamw<false>(op, call);
}

}  // namespace ebb::cpu
