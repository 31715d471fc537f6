#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

namespace {

// body over the lanes of [0, n), split over threads at whole vectors.
template <typename Body>
void each_lane(int64_t n, Body body) {
  parallel_range(n, 4096, 1, [&](int64_t begin, int64_t end) { for_lanes(begin, end, body); });
}

// gelu(x) = x s with s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form, rewritten
// so that one exponential and one division serve.
constexpr float kTwoRoot = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

Vec gelu_gate(Vec x) {
  return sigmoid(splat(kTwoRoot) * x * (splat(1.0f) + splat(kCubic) * x * x));
}

}  // namespace

void run(const Silu& op, const Call& call) {
  const float* x = call.read(0);
  float* y = call.write(0);
  each_lane(op.n, [=](int64_t i, auto get, auto put) {
    const Vec v = get(x + i);
    put(y + i, v * sigmoid(v));
  });
}

void run(const SiluBackward& op, const Call& call) {
  const float* dy = call.read(0);
  const float* x = call.read(1);
  float* dx = call.write(0);
  each_lane(op.n, [=](int64_t i, auto get, auto put) {
    const Vec v = get(x + i);
    const Vec s = sigmoid(v);
    put(dx + i, get(dy + i) * s * (splat(1.0f) + v * (splat(1.0f) - s)));
  });
}

void run(const Gelu& op, const Call& call) {
  const float* x = call.read(0);
  float* y = call.write(0);
  each_lane(op.n, [=](int64_t i, auto get, auto put) {
    const Vec v = get(x + i);
    put(y + i, v * gelu_gate(v));
  });
}

void run(const GeluBackward& op, const Call& call) {
  const float* dy = call.read(0);
  const float* x = call.read(1);
  float* dx = call.write(0);
  each_lane(op.n, [=](int64_t i, auto get, auto put) {
    const Vec v = get(x + i);
    const Vec s = gelu_gate(v);
    const Vec slope = splat(kTwoRoot) * (splat(1.0f) + splat(3 * kCubic) * v * v);
    put(dx + i, get(dy + i) * s * (splat(1.0f) + v * slope * (splat(1.0f) - s)));
  });
}

void run(const Add& op, const Call& call) {
  const float* a = call.read(0);
  const float* b = call.read(1);
  float* y = call.write(0);
  each_lane(op.n, [=](int64_t i, auto get, auto put) { put(y + i, get(a + i) + get(b + i)); });
}

void run(const AddTo& op, const Call& call) {
  const float* x = call.read(0);
  float* y = call.update(0);
  each_lane(op.n, [=](int64_t i, auto get, auto put) { put(y + i, get(y + i) + get(x + i)); });
}

void run(const Repeat& op, const Call& call) {
  for (int half = 0; half < 2; ++half) {
    parallel_range(op.n, 4096, 1, [&](int64_t begin, int64_t end) {
      std::memcpy(call.write(0) + half * op.n + begin, call.read(0) + begin,
                  (end - begin) * sizeof(float));
    });
  }
}

void run(const Zero& op, const Call& call) {
  parallel_range(op.n, 4096, 1, [&](int64_t begin, int64_t end) {
    std::memset(call.write(0) + begin, 0, (end - begin) * sizeof(float));
  });
}

}  // namespace ebb::cpu
