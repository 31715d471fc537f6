// Twins of the ops that bring samples in.
#pragma once

#include "base/error.h"
#include "base/rng.h"
#include "kernels/reference/refs.h"

namespace ebb {

template <typename T>
void reference(const TakeSamples&, const Refs<T>&) {
  throw Bug("samples: a twin has no feed");
}

template <typename T>
void reference(const ReadSamples& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    const int64_t place = r.scalars->step * op.batch + r.scalars->first_sample + op.first_sample +
                          r.iteration * op.B + b;
    const bool mirrored = op.mirror && is_mirrored(r.scalars->seed, place);
    for (int64_t i = 0; i < op.C * op.S * op.S; ++i) {
      const int64_t column = i % op.S;
      const int64_t from = i - column + (mirrored ? op.S - 1 - column : column);
      const T stored = r.reads[0][b * op.C * op.S * op.S + from];
      r.writes[0][b * op.C * op.S * op.S + i] =
          op.type == DType::u8 ? T(stored / 127.5 - 1.0) : stored;
    }
  }
}

}  // namespace ebb
