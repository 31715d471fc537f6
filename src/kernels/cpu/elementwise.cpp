#include <cstring>

#include "kernels/cpu/each_lane.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/kernels.h"

namespace ebb::cpu {

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
    put(dx + i, get(dy + i) * s * multiply_add(v, splat(1.0f) - s, splat(1.0f)));
  });
}

void run(const Gelu& op, const Call& call) {
  with_storage(op.type, [&](auto element) {
    using S = decltype(element);
    const S* x = call.read<S>(0);
    S* y = call.write<S>(0);
    each_lane(op.n, [=](int64_t i, auto get, auto put) { put(y + i, gelu(get(x + i))); });
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

void run(const CopyColumns& op, const Call& call) {
  const int64_t size = dtype_bytes(op.type);
  parallel_range(op.R, 1, op.n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(call.writes[0] + (i * op.N + op.to) * size,
                  call.reads[0] + (i * op.K + op.from) * size, op.n * size);
    }
  });
}

void run(const Zero& op, const Call& call) {
  const int64_t size = dtype_bytes(op.type);
  parallel_range(op.n, 4096, 1, [&](int64_t begin, int64_t end) {
    std::memset(call.writes[0] + begin * size, 0, (end - begin) * size);
  });
}

}  // namespace ebb::cpu
