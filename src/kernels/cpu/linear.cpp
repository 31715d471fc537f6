// Linear layers: y (R, N) = x (R, K) w (N, K)ᵀ + bias.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

Strided rows_of(const float* matrix, int64_t width) { return {matrix, width, 1}; }
Strided transposed(const Strided& m) { return {m.data, m.col, m.row}; }

Gemm product(const Linear& op, const float* x, const float* w, const float* bias) {
  return {op.R, op.N, op.K, rows_of(x, op.K), transposed(rows_of(w, op.K)), bias};
}
Gemm product(const LinearBackwardInput& op, const float* dy, const float* w) {
  return {op.R, op.K, op.N, rows_of(dy, op.N), rows_of(w, op.K)};
}
Gemm product(const LinearBackwardWeight& op, const float* dy, const float* x) {
  return {op.N, op.K, op.R, transposed(rows_of(dy, op.N)), rows_of(x, op.K), nullptr, !op.begins};
}

}  // namespace

int64_t scratch(const Linear& op) {
  return gemm_scratch_bytes(product(op, nullptr, nullptr, nullptr));
}
int64_t scratch(const LinearBackwardInput& op) {
  return gemm_scratch_bytes(product(op, nullptr, nullptr));
}
int64_t scratch(const LinearBackwardWeight& op) {
  return gemm_scratch_bytes(product(op, nullptr, nullptr));
}

void run(const Linear& op, const Call& call) {
  gemm(call.write(0), product(op, call.read(0), call.read(1), call.read(2)), call.scratch.data());
}

void run(const LinearBackwardInput& op, const Call& call) {
  gemm(call.write(0), product(op, call.read(0), call.read(1)), call.scratch.data());
}

void run(const LinearBackwardWeight& op, const Call& call) {
  gemm(op.begins ? call.write(0) : call.update(0), product(op, call.read(0), call.read(1)),
       call.scratch.data());
}

// Column by column in the order of the rows, so that micro-batches add up to the same bits.
void run(const LinearBackwardBias& op, const Call& call) {
  const float* dy = call.read(0);
  float* db = call.update(0);
  constexpr int64_t kStrip = 8 * kLanes;  // columns whose sums stay in registers
  parallel_range(op.N, kLanes, op.R, [&](int64_t begin, int64_t end) {
    int64_t j = begin;
    for (; j + kStrip <= end; j += kStrip) {
      Vec sums[kStrip / kLanes];
      for (int v = 0; v < kStrip / kLanes; ++v) sums[v] = load(db + j + v * kLanes);
      for (int64_t r = 0; r < op.R; ++r) {
        const float* row = dy + r * op.N + j;
        for (int v = 0; v < kStrip / kLanes; ++v) sums[v] += load(row + v * kLanes);
      }
      for (int v = 0; v < kStrip / kLanes; ++v) store(db + j + v * kLanes, sums[v]);
    }
    for_lanes(j, end, [&](int64_t at, auto get, auto put) {
      Vec sum = get(db + at);
      for (int64_t r = 0; r < op.R; ++r) sum += get(dy + r * op.N + at);
      put(db + at, sum);
    });
  });
}

}  // namespace ebb::cpu
