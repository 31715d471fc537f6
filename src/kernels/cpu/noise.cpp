// Noise, times and labels of a training step, each a function of its key alone.
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/diffusion_tables.h"

namespace ebb::cpu {

namespace {

// The place of the op's first sample in its step.
template <typename AnyOp>
int64_t first_sample(const AnyOp& op, const Call& call) {
  return op.first_sample + call.iteration * op.B;
}

std::array<uint32_t, 4> draw(const Call& call, Stream stream, int64_t sample, int64_t block) {
  return philox(
      call.scalars->seed, static_cast<uint32_t>(stream), static_cast<uint32_t>(call.scalars->step),
      static_cast<uint32_t>(call.scalars->first_sample + sample), static_cast<uint32_t>(block));
}

}  // namespace

void run(const FillNormal& op, const Call& call) {
  float* noise = call.write(0);
  const int64_t blocks = (op.n + 3) / 4;
  const int64_t first = first_sample(op, call);
  parallel_range(op.B * blocks, 64, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / blocks;
      const int64_t block = i % blocks;
      const auto values = normals(draw(call, op.stream, first + sample, block));
      const int64_t rest = std::min<int64_t>(4, op.n - block * 4);
      for (int64_t k = 0; k < rest; ++k) {
        noise[sample * op.n + block * 4 + k] = static_cast<float>(values[k]);
      }
    }
  });
}

void run(const DrawTimes& op, const Call& call) {
  float* t = call.write(0);
  for (int64_t b = 0; b < op.B; ++b) {
    const auto bits = draw(call, Stream::time, first_sample(op, call) + b, 0);
    if (op.objective == Objective::ddpm) {
      t[b] = static_cast<float>((uint64_t{bits[0]} * kDiffusionSteps) >> 32);
    } else if (op.sampling == TimeSampling::uniform) {
      t[b] = (static_cast<float>(bits[0] >> 9) + 0.5f) * 0x1p-23f;  // exact: never 0 or 1
    } else {
      t[b] = static_cast<float>(1 / (1 + std::exp(-normals(bits)[0])));
    }
  }
}

void run(const DropLabels& op, const Call& call) {
  const auto* y = call.read<int32_t>(0);
  auto* dropped = call.write<int32_t>(0);
  for (int64_t b = 0; b < op.B; ++b) {
    const auto bits = draw(call, Stream::label_drop, first_sample(op, call) + b, 0);
    dropped[b] = open_unit(bits[0]) < op.p ? op.null_label : y[b];
  }
}

void run(const Diffuse& op, const Call& call) {
  const float* x = call.read(0);
  const float* noise = call.read(1);
  const float* t = call.read(2);
  float* xt = call.write(0);
  const DiffusionTables& tables = diffusion_tables();
  parallel_range(op.B, 1, op.n, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float keep = 1 - t[b];
      float add = t[b];
      if (op.objective == Objective::ddpm) {
        keep = static_cast<float>(tables.sqrt_ac[static_cast<int>(t[b])]);
        add = static_cast<float>(tables.sqrt_1mac[static_cast<int>(t[b])]);
      }
      for (int64_t i = b * op.n; i < (b + 1) * op.n; ++i) {
        xt[i] = std::fma(keep, x[i], add * noise[i]);
      }
    }
  });
}

void run(const FillTime& op, const Call& call) {
  for (int64_t b = 0; b < op.B; ++b) call.write(0)[b] = call.scalars->time[op.index];
}

}  // namespace ebb::cpu
