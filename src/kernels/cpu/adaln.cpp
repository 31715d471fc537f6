#include <cmath>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/sums.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

namespace {

struct RowStats {
  float mean, rstd;
};

template <typename S>
RowStats row_stats(const S* x, int64_t D) {
  Vec total{};
  for_lanes(0, D, [&](int64_t i, auto get, auto) { total += get(x + i); });
  const float mean = sum(total) / static_cast<float>(D);
  Vec squares{};
  int64_t i = 0;
  for (; i + kLanes <= D; i += kLanes) {
    const Vec c = load(x + i) - splat(mean);
    squares = multiply_add(c, c, squares);
  }
  float rest = 0;
  for (; i < D; ++i) {
    const float off = static_cast<float>(x[i]) - mean;
    rest = std::fma(off, off, rest);
  }
  const float variance = (sum(squares) + rest) / static_cast<float>(D);
  return {mean, 1.0f / std::sqrt(variance + static_cast<float>(kNormEps))};
}

template <typename S>
void adaln(const AdaLN& op, const Call& call) {
  const S* x = call.read<S>(0);
  const float* mod = call.read(1);
  S* y = call.write<S>(0);
  float* stats = call.write(1);
  parallel_range(op.B * op.T, 1, op.D, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const S* row = x + r * op.D;
      const float* sample = mod + r / op.T * op.chunks * op.D;
      const float* shift = sample + op.shift * op.D;
      const float* scale = sample + op.scale * op.D;
      const RowStats s = row_stats(row, op.D);
      stats[2 * r] = s.mean;
      stats[2 * r + 1] = s.rstd;
      S* out = y + r * op.D;
      for_lanes(0, op.D, [&](int64_t i, auto get, auto put) {
        const Vec hat = (get(row + i) - splat(s.mean)) * splat(s.rstd);
        put(out + i, multiply_add(hat, splat(1.0f) + get(scale + i), get(shift + i)));
      });
    }
  });
}

template <typename S>
void adaln_backward(const AdaLNBackward& op, const Call& call) {
  const S* dy = call.read<S>(0);
  const S* x = call.read<S>(1);
  const float* stats = call.read(2);
  const float* mod = call.read(3);
  float* dmod = call.write(0);
  S* dx = op.residual ? call.update<S>(0) : call.write<S>(1);
  const int64_t D = op.D;

  const auto row_backward = [&](int64_t r, const float* scale, float* dshift, float* dscale) {
    const S* g = dy + r * D;
    const S* row = x + r * D;
    const Vec mean = splat(stats[2 * r]);
    const Vec rstd = splat(stats[2 * r + 1]);
    Vec g_sum{};
    Vec gx_sum{};
    for_lanes(0, D, [&](int64_t i, auto get, auto put) {
      const Vec d = get(g + i);
      const Vec hat = (get(row + i) - mean) * rstd;
      put(dshift + i, get(dshift + i) + d);
      put(dscale + i, multiply_add(d, hat, get(dscale + i)));
      const Vec through = d * (splat(1.0f) + get(scale + i));
      g_sum += through;
      gx_sum = multiply_add(through, hat, gx_sum);
    });
    const Vec g_mean = splat(sum(g_sum) / static_cast<float>(D));
    const Vec gx_mean = splat(sum(gx_sum) / static_cast<float>(D));
    S* out = dx + r * D;
    for_lanes(0, D, [&](int64_t i, auto get, auto put) {
      const Vec hat = (get(row + i) - mean) * rstd;
      const Vec through = multiply_less(get(g + i), splat(1.0f) + get(scale + i), g_mean);
      const Vec flow = rstd * less_product(through, hat, gx_mean);
      put(out + i, op.residual ? get(out + i) + flow : flow);
    });
  };

  sum_over_tokens(
      reinterpret_cast<float*>(call.scratch.data()), op.B, op.T, 2 * D,
      [&](int64_t b, int64_t first, int64_t end, float* sums) {
        const float* scale = mod + (b * op.chunks + op.scale) * D;
        for (int64_t r = first; r < end; ++r) row_backward(r, scale, sums, sums + D);
      },
      [&](int64_t b, const float* sums) {
        std::memcpy(dmod + (b * op.chunks + op.shift) * D, sums, D * sizeof(float));
        std::memcpy(dmod + (b * op.chunks + op.scale) * D, sums + D, D * sizeof(float));
      });
}

}  // namespace

void run(const AdaLN& op, const Call& call) {
  with_storage(op.type, [&](auto element) { adaln<decltype(element)>(op, call); });
}

int64_t scratch(const AdaLNBackward& op) { return token_sum_scratch(op.B, op.T, 2 * op.D); }

void run(const AdaLNBackward& op, const Call& call) {
  with_storage(op.type, [&](auto element) { adaln_backward<decltype(element)>(op, call); });
}

}  // namespace ebb::cpu
