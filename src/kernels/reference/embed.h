// Twins of the embedders and of the image <-> token rearrangements.
#pragma once

#include <algorithm>

#include "kernels/reference/refs.h"

namespace ebb {

// Calls fn(image_index, token, channel, row, column) for every element of a (B, C, S, S) image;
// tokens are numbered over the whole batch, row and column are those within the patch.
template <typename O, typename Fn>
void each_pixel(const O& op, const Fn& fn) {
  const int64_t grid = op.S / op.p;
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t c = 0; c < op.C; ++c) {
      for (int64_t y = 0; y < op.S; ++y) {
        for (int64_t x = 0; x < op.S; ++x) {
          const int64_t token = (b * grid + y / op.p) * grid + x / op.p;
          fn(((b * op.C + c) * op.S + y) * op.S + x, token, c, y % op.p, x % op.p);
        }
      }
    }
  }
}

template <typename T>
void reference(const Patchify& op, const Refs<T>& r) {
  each_pixel(op, [&](int64_t at, int64_t token, int64_t c, int64_t row, int64_t column) {
    r.writes[0][((token * op.C + c) * op.p + row) * op.p + column] = r.reads[0][at];
  });
}

template <typename T>
void reference(const Unpatchify& op, const Refs<T>& r) {
  each_pixel(op, [&](int64_t at, int64_t token, int64_t c, int64_t row, int64_t column) {
    r.writes[0][at] = r.reads[0][((token * op.p + row) * op.p + column) * op.C + c];
  });
}

template <typename T>
void reference(const UnpatchifyBackward& op, const Refs<T>& r) {
  each_pixel(op, [&](int64_t at, int64_t token, int64_t c, int64_t row, int64_t column) {
    r.writes[0][((token * op.p + row) * op.p + column) * op.C + c] = r.reads[0][at];
  });
}

template <typename T>
void reference(const AddPositions& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t i = 0; i < op.T * op.D; ++i) r.updates[0][b * op.T * op.D + i] += r.reads[0][i];
  }
}

template <typename T>
void reference(const TimeEmbed& op, const Refs<T>& r) {
  using std::cos, std::sin;
  const int half = kTimeFeatures / 2;
  for (int64_t b = 0; b < op.B; ++b) {
    const T t = (op.objective == Objective::flow ? 1000.0 : 1.0) * r.reads[0][b];
    T* features = r.writes[0] + b * kTimeFeatures;
    for (int k = 0; k < half; ++k) {
      const double frequency = std::exp(-std::log(10000.0) * k / half);
      features[k] = cos(T(t * frequency));
      features[half + k] = sin(T(t * frequency));
    }
  }
}

template <typename T>
void reference(const LabelEmbed& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    std::copy_n(r.reads[1] + whole(r.reads[0][b]) * op.D, op.D, r.writes[0] + b * op.D);
  }
}

template <typename T>
void reference(const LabelEmbedBackward& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    T* row = r.updates[0] + whole(r.reads[1][b]) * op.D;
    for (int64_t i = 0; i < op.D; ++i) row[i] += r.reads[0][b * op.D + i];
  }
}

}  // namespace ebb
