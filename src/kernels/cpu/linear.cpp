// Linear layers: y (R, N) = x (R, K) w (N, K)ᵀ + bias.
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

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
Gemm product(const LinearBackwardParams& op, const float* dy, const float* x, float* db) {
  return {op.N,    op.K,       op.R, transposed(rows_of(dy, op.N)), rows_of(x, op.K),
          nullptr, !op.begins, db};
}

}  // namespace

int64_t scratch(const Linear& op) {
  return gemm_scratch_bytes(product(op, nullptr, nullptr, nullptr));
}
int64_t scratch(const LinearBackwardInput& op) {
  return gemm_scratch_bytes(product(op, nullptr, nullptr));
}
int64_t scratch(const LinearBackwardParams& op) {
  return gemm_scratch_bytes(product(op, nullptr, nullptr, nullptr));
}

void run(const Linear& op, const Call& call) {
  float* y = call.write(0);
  Gemm whole = product(op, call.read(0), call.read(1), call.read(2));
  if (op.end != LinearEnd::plain) {
    float* g = op.end == LinearEnd::gelu ? y : call.write(1);
    whole.finish = [y, g](int64_t first, int64_t count) {
      for_lanes(first, first + count,
                [&](int64_t i, auto get, auto put) { put(g + i, gelu(get(y + i))); });
    };
  }
  gemm(y, whole, call.scratch.data());
}

void run(const LinearBackwardInput& op, const Call& call) {
  float* dx = call.write(0);
  Gemm whole = product(op, call.read(0), call.read(1));
  if (op.gelu) {
    whole.finish = [dx, u = call.read(2)](int64_t first, int64_t count) {
      for_lanes(first, first + count, [&](int64_t i, auto get, auto put) {
        put(dx + i, gelu_backward(get(dx + i), get(u + i)));
      });
    };
  }
  gemm(dx, whole, call.scratch.data());
}

void run(const LinearBackwardParams& op, const Call& call) {
  const auto& into = op.begins ? call.writes : call.updates;
  gemm(reinterpret_cast<float*>(into[0]),
       product(op, call.read(0), call.read(1), reinterpret_cast<float*>(into[1])),
       call.scratch.data());
}

}  // namespace ebb::cpu
