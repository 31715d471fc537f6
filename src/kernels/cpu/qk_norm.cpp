#include <cmath>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/sums.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

namespace {

template <typename S>
void qk_norm(const QkNorm& op, const Call& call) {
  const S* qkv = call.read<S>(0);
  const bool layer = op.kind == QkNormKind::layer;
  S* normed = call.write<S>(0);
  float* stats = call.write(1);
  const int64_t d = op.d;
  const int64_t row = 3 * op.H * d;
  parallel_range(op.B * op.T, 1, row, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < 2 * op.H; ++h) {  // the heads of q, then those of k
        const S* x = qkv + r * row + h * d;
        const auto at = [x](int64_t i) { return static_cast<float>(x[i]); };
        const float* weight = call.read(h < op.H ? 1 : 2);
        const float* bias = layer ? call.read(h < op.H ? 3 : 4) : nullptr;
        float mean = 0;
        if (layer) {
          for (int64_t i = 0; i < d; ++i) mean += at(i);
          mean /= static_cast<float>(d);
        }
        float square = 0;
        for (int64_t i = 0; i < d; ++i) square += (at(i) - mean) * (at(i) - mean);
        const float rstd =
            1.0f / std::sqrt(square / static_cast<float>(d) + static_cast<float>(kNormEps));
        S* y = normed + r * row + h * d;
        for (int64_t i = 0; i < d; ++i) {
          const float hat = (at(i) - mean) * rstd;
          y[i] = stored<S>(std::fma(hat, weight[i], bias ? bias[i] : 0.0f));
        }
        stats[(r * 2 * op.H + h) * 2] = mean;
        stats[(r * 2 * op.H + h) * 2 + 1] = rstd;
      }
      const int64_t v = r * row + 2 * op.H * d;
      std::memmove(normed + v, qkv + v, op.H * d * sizeof(S));
    }
  });
}

template <typename S>
void qk_norm_backward(const QkNormBackward& op, const Call& call) {
  const S* dnormed = call.read<S>(0);
  const S* qkv = call.read<S>(1);
  const float* stats = call.read(2);
  const bool layer = op.kind == QkNormKind::layer;
  S* dqkv = call.write<S>(0);
  const int64_t d = op.d;
  const int64_t row = 3 * op.H * d;

  // sums: dqw, dkw, dqb, dkb of one chunk of rows
  const auto head_backward = [&](int64_t r, int64_t h, float* sums) {
    const int64_t at = r * row + h * d;
    const bool key = h >= op.H;
    const float* weight = call.read(key ? 4 : 3);
    const float mean = stats[(r * 2 * op.H + h) * 2];
    const float rstd = stats[(r * 2 * op.H + h) * 2 + 1];
    const auto hat_at = [&](int64_t i) { return (static_cast<float>(qkv[at + i]) - mean) * rstd; };
    float g_mean = 0;
    float gx_mean = 0;
    for (int64_t i = 0; i < d; ++i) {
      const float hat = hat_at(i);
      const auto g = static_cast<float>(dnormed[at + i]);
      float& dweight = sums[(key ? d : 0) + i];
      dweight = std::fma(g, hat, dweight);
      sums[(key ? 3 * d : 2 * d) + i] += g;
      g_mean = std::fma(g, weight[i], g_mean);
      gx_mean = std::fma(g * weight[i], hat, gx_mean);
    }
    g_mean = layer ? g_mean / static_cast<float>(d) : 0.0f;
    gx_mean /= static_cast<float>(d);
    for (int64_t i = 0; i < d; ++i) {
      const auto g = static_cast<float>(dnormed[at + i]);
      const float centred = std::fma(g, weight[i], -g_mean);
      dqkv[at + i] = stored<S>(rstd * std::fma(-hat_at(i), gx_mean, centred));
    }
  };

  auto* partial = reinterpret_cast<float*>(call.scratch.data());
  sum_over_tokens(
      partial, op.B, op.T, 4 * d,
      [&](int64_t, int64_t first, int64_t end, float* sums) {
        for (int64_t r = first; r < end; ++r) {
          for (int64_t h = 0; h < 2 * op.H; ++h) head_backward(r, h, sums);
          const int64_t v = r * row + 2 * op.H * d;
          std::memmove(dqkv + v, dnormed + v, op.H * d * sizeof(S));
        }
      },
      [](int64_t, const float*) {});
  for (int64_t b = 0; b < op.B; ++b) {  // parameter gradients: samples added in order
    const float* sums = partial + b * token_chunks(op.T) * 4 * d;
    for (int part = 0; part < (layer ? 4 : 2); ++part) {
      for (int64_t i = 0; i < d; ++i) call.update(part)[i] += sums[part * d + i];
    }
  }
}

}  // namespace

void run(const QkNorm& op, const Call& call) {
  with_storage(op.type, [&](auto element) { qk_norm<decltype(element)>(op, call); });
}

int64_t scratch(const QkNormBackward& op) { return token_sum_scratch(op.B, op.T, 4 * op.d); }

void run(const QkNormBackward& op, const Call& call) {
  with_storage(op.type, [&](auto element) { qk_norm_backward<decltype(element)>(op, call); });
}

}  // namespace ebb::cpu
