// From samples as a data set stores them to what the network works on.
#include <algorithm>

#include "base/float16.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

// Every pixel there is as a number in [-1, 1].
struct PixelValues {
  float of[256];
  PixelValues() {
    for (int v = 0; v < 256; ++v) of[v] = static_cast<float>(v) / 127.5f - 1;
  }
};

float value(uint8_t pixel) {
  static const PixelValues kValues;
  return kValues.of[pixel];
}
float value(F16 x) { return static_cast<float>(x); }
float value(float x) { return x; }

template <typename Stored>
void read_samples(const ReadSamples& op, const Call& call) {
  const auto* stored = call.read<Stored>(0);
  float* x = call.write(0);
  const Scalars& s = *call.scalars;
  const int64_t first =
      s.step * op.batch + s.first_sample + op.first_sample + call.iteration * op.B;
  const int64_t rows = op.C * op.S;
  parallel_range(op.B * rows, 1, op.S, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Stored* from = stored + row * op.S;
      float* to = x + row * op.S;
      for (int64_t i = 0; i < op.S; ++i) to[i] = value(from[i]);
      if (op.mirror && is_mirrored(s.seed, first + row / rows)) std::reverse(to, to + op.S);
    }
  });
}

}  // namespace

void run(const ReadSamples& op, const Call& call) {
  switch (op.type) {
    case DType::u8:
      return read_samples<uint8_t>(op, call);
    case DType::f16:
      return read_samples<F16>(op, call);
    default:
      return read_samples<float>(op, call);
  }
}

}  // namespace ebb::cpu
