#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/sums.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

namespace {

template <typename S>
void add_gated(const AddGated& op, const Call& call) {
  const S* x = call.read<S>(0);
  const S* y = call.read<S>(1);
  const float* mod = call.read(2);
  S* out = call.write<S>(0);
  parallel_range(op.B * op.T, 1, op.D, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = mod + (r / op.T * op.chunks + op.gate) * op.D;
      const int64_t row = r * op.D;
      for_lanes(0, op.D, [&](int64_t i, auto get, auto put) {
        put(out + row + i, multiply_add(get(gate + i), get(y + row + i), get(x + row + i)));
      });
    }
  });
}

template <typename S>
void add_gated_backward(const AddGatedBackward& op, const Call& call) {
  const S* dout = call.read<S>(0);
  const S* y = call.read<S>(1);
  const float* mod = call.read(2);
  S* dy = call.write<S>(0);
  float* dmod = call.write(1);
  const int64_t D = op.D;
  sum_over_tokens(
      reinterpret_cast<float*>(call.scratch.data()), op.B, op.T, D,
      [&](int64_t b, int64_t first, int64_t end, float* sums) {
        const float* gate = mod + (b * op.chunks + op.gate) * D;
        for (int64_t row = first * D; row < end * D; row += D) {
          for_lanes(0, D, [&](int64_t i, auto get, auto put) {
            const Vec d = get(dout + row + i);
            put(sums + i, multiply_add(d, get(y + row + i), get(sums + i)));
            put(dy + row + i, d * get(gate + i));
          });
        }
      },
      [&](int64_t b, const float* sums) {
        std::memcpy(dmod + (b * op.chunks + op.gate) * D, sums, D * sizeof(float));
      });
}

}  // namespace

void run(const AddGated& op, const Call& call) {
  with_storage(op.type, [&](auto element) { add_gated<decltype(element)>(op, call); });
}

int64_t scratch(const AddGatedBackward& op) { return token_sum_scratch(op.B, op.T, op.D); }

void run(const AddGatedBackward& op, const Call& call) {
  with_storage(op.type, [&](auto element) { add_gated_backward<decltype(element)>(op, call); });
}

}  // namespace ebb::cpu
