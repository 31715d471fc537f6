// Images to tokens and back; positions, times and labels to vectors.
#include <cmath>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

void run(const Patchify& op, const Call& call) {
  const float* image = call.read(0);
  float* patches = call.write(0);
  const int64_t grid = op.S / op.p;
  const int64_t row = op.C * op.p * op.p;
  parallel_range(op.B * grid * grid, 1, row, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t b = token / (grid * grid);
      const int64_t top = token / grid % grid * op.p;
      const int64_t left = token % grid * op.p;
      float* out = patches + token * row;
      for (int64_t c = 0; c < op.C; ++c) {
        for (int64_t i = 0; i < op.p; ++i) {
          const float* line = image + ((b * op.C + c) * op.S + top + i) * op.S + left;
          for (int64_t j = 0; j < op.p; ++j) *out++ = line[j];
        }
      }
    }
  });
}

namespace {

// visit(index in the token matrix, index in the image) for every element, tokens split over
// threads.
template <typename Visit>
void each_token_element(int64_t B, int64_t C, int64_t S, int64_t p, Visit visit) {
  const int64_t grid = S / p;
  const int64_t row = p * p * C;
  parallel_range(B * grid * grid, 1, row, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t b = token / (grid * grid);
      const int64_t top = token / grid % grid * p;
      const int64_t left = token % grid * p;
      int64_t at = token * row;
      for (int64_t i = 0; i < p; ++i) {
        for (int64_t j = 0; j < p; ++j) {
          for (int64_t c = 0; c < C; ++c) {
            visit(at++, ((b * C + c) * S + top + i) * S + left + j);
          }
        }
      }
    }
  });
}

}  // namespace

void run(const Unpatchify& op, const Call& call) {
  const float* tokens = call.read(0);
  float* image = call.write(0);
  each_token_element(op.B, op.C, op.S, op.p,
                     [=](int64_t token, int64_t pixel) { image[pixel] = tokens[token]; });
}

void run(const UnpatchifyBackward& op, const Call& call) {
  const float* dimage = call.read(0);
  float* dtokens = call.write(0);
  each_token_element(op.B, op.C, op.S, op.p,
                     [=](int64_t token, int64_t pixel) { dtokens[token] = dimage[pixel]; });
}

void run(const AddPositions& op, const Call& call) {
  with_storage(op.type, [&](auto element) {
    const float* pos = call.read(0);
    auto* tokens = call.update<decltype(element)>(0);
    parallel_range(op.B * op.T, 1, op.D, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* add = pos + r % op.T * op.D;
        auto* row = tokens + r * op.D;
        for_lanes(0, op.D, [&](int64_t i, auto get, auto put) {
          put(row + i, get(row + i) + get(add + i));
        });
      }
    });
  });
}

void run(const TimeEmbed& op, const Call& call) {
  const float* t = call.read(0);
  float* features = call.write(0);
  constexpr int kHalf = kTimeFeatures / 2;
  for (int64_t b = 0; b < op.B; ++b) {
    const double time = op.objective == Objective::flow ? 1000.0 * t[b] : t[b];
    for (int k = 0; k < kHalf; ++k) {
      const double angle = time * std::exp(-std::log(1e4) * k / kHalf);
      features[b * kTimeFeatures + k] = static_cast<float>(std::cos(angle));
      features[b * kTimeFeatures + kHalf + k] = static_cast<float>(std::sin(angle));
    }
  }
}

void run(const LabelEmbed& op, const Call& call) {
  const auto* y = call.read<int32_t>(0);
  const float* table = call.read(1);
  for (int64_t b = 0; b < op.B; ++b) {
    std::memcpy(call.write(0) + b * op.D, table + y[b] * op.D, op.D * sizeof(float));
  }
}

void run(const LabelEmbedBackward& op, const Call& call) {
  const float* de = call.read(0);
  const auto* y = call.read<int32_t>(1);
  float* dtable = call.update(0);
  for (int64_t b = 0; b < op.B; ++b) {  // in sample order: two samples may share a row
    float* row = dtable + y[b] * op.D;
    for (int64_t i = 0; i < op.D; ++i) row[i] += de[b * op.D + i];
  }
}

}  // namespace ebb::cpu
