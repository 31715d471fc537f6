// Twins of the ops that make noise, times and dropped labels, and of the diffusion itself. The
// random numbers are a function of (seed, stream, step, sample, element) and of nothing else, so a
// fast kernel must draw the same ones.
#pragma once

#include "base/rng.h"
#include "kernels/diffusion_tables.h"
#include "kernels/reference/refs.h"

namespace ebb {

inline std::array<uint32_t, 4> random_block(const Scalars& s, Stream stream, int64_t sample,
                                            int64_t block) {
  return philox(s.seed, static_cast<uint32_t>(stream), static_cast<uint32_t>(s.step),
                static_cast<uint32_t>(s.first_sample + sample), static_cast<uint32_t>(block));
}

template <typename T>
void reference(const FillNormal& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    for (int64_t i = 0; i < op.n; ++i) {
      const auto bits =
          random_block(*r.scalars, op.stream, op.first_sample + r.iteration * op.B + b, i / 4);
      r.writes[0][b * op.n + i] = T(normals(bits)[i % 4]);
    }
  }
}

// 23 random bits and a half: exact in fp32 too, and so strictly inside (0, 1) there as well.
inline double short_unit(uint32_t bits) { return ((bits >> 9) + 0.5) * 0x1p-23; }

// Times of ddpm are uniform whatever the sampling.
template <typename T>
void reference(const DrawTimes& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    const auto bits =
        random_block(*r.scalars, Stream::time, op.first_sample + r.iteration * op.B + b, 0);
    if (op.objective == Objective::ddpm) {
      r.writes[0][b] = T(static_cast<double>((uint64_t{bits[0]} * kDiffusionSteps) >> 32));
    } else if (op.sampling == TimeSampling::uniform) {
      r.writes[0][b] = T(short_unit(bits[0]));
    } else {
      r.writes[0][b] = T(sigmoid(normals(bits)[0]));
    }
  }
}

template <typename T>
void reference(const DropLabels& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    const auto bits =
        random_block(*r.scalars, Stream::label_drop, op.first_sample + r.iteration * op.B + b, 0);
    const bool drop = open_unit(bits[0]) < static_cast<double>(op.p);
    r.writes[0][b] = drop ? T(static_cast<double>(op.null_label)) : r.reads[0][b];
  }
}

template <typename T>
void reference(const Diffuse& op, const Refs<T>& r) {
  const DiffusionTables& tables = diffusion_tables();
  for (int64_t b = 0; b < op.B; ++b) {
    const T t = r.reads[2][b];
    const bool ddpm = op.objective == Objective::ddpm;
    const T of_x = ddpm ? T(tables.sqrt_ac[whole(t)]) : T(1.0 - t);
    const T of_noise = ddpm ? T(tables.sqrt_1mac[whole(t)]) : t;
    for (int64_t i = b * op.n; i < (b + 1) * op.n; ++i) {
      r.writes[0][i] = of_x * r.reads[0][i] + of_noise * r.reads[1][i];
    }
  }
}

template <typename T>
void reference(const FillTime& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    r.writes[0][b] = T(static_cast<double>(r.scalars->time[op.index]));
  }
}

}  // namespace ebb
