// Linear layers: y (R, N) = x (R, K) w (N, K)ᵀ + bias.
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"

namespace ebb::cpu {

namespace {

Matrix rows_of(const void* matrix, DType type, int64_t width) { return {matrix, type, width, 1}; }
Matrix transposed(const Matrix& m) { return {m.data, m.type, m.col, m.row, m.mask, !m.transposed}; }

// The last of what the op reads, where it reads one.
template <typename AnyLinear>
Mask mask_of(const AnyLinear& op, const Call& call) {
  if (op.left == 0) return {};
  return {call.reads.empty() ? nullptr : call.reads.back(), mask_row_bytes(op.K), op.left};
}

template <typename AnyLinear>
Matrix weight_of(const AnyLinear& op, const Call& call) {
  Matrix w = rows_of(call.read_or_null(1), op.w, op.K);
  w.mask = mask_of(op, call);
  return w;
}

// Without a call: what its scratch depends on.
Gemm product(const Linear& op, const Call& call = {}) {
  Gemm p{op.R, op.N, op.K, rows_of(call.read_or_null(0), op.x, op.K),
         transposed(weight_of(op, call))};
  p.bias = static_cast<const float*>(call.read_or_null(2));
  p.c = op.y;
  return p;
}

Gemm product(const LinearBackwardInput& op, const Call& call = {}) {
  Gemm p{op.R, op.K, op.N, rows_of(call.read_or_null(0), op.dy, op.N), weight_of(op, call)};
  p.c = op.dx;
  return p;
}

Gemm product(const LinearBackwardParams& op, const Call& call = {}) {
  Gemm p{op.N, op.K, op.R, transposed(rows_of(call.read_or_null(0), op.dy, op.N)),
         rows_of(call.read_or_null(1), op.x, op.K)};
  p.accumulate = !op.begins;
  p.c = op.dw;
  p.c_mask = mask_of(op, call);
  return p;
}

// GELU of y as it is stored, in its place or in g.
template <typename S>
void finish_gelu(Gemm& p, S* g) {
  p.finish = [g](int64_t first, float* values, int64_t count) {
    for_lanes(0, count, [&](int64_t i, auto get, auto put) {
      const Vec end = gelu(as_stored<S>(get(values + i)));
      g == nullptr ? put(values + i, end) : put(g + first + i, end);
    });
  };
}

}  // namespace

int64_t scratch(const Linear& op) { return gemm_scratch_bytes(product(op)); }
int64_t scratch(const LinearBackwardInput& op) { return gemm_scratch_bytes(product(op)); }
int64_t scratch(const LinearBackwardParams& op) { return gemm_scratch_bytes(product(op)); }

void run(const Linear& op, const Call& call) {
  Gemm whole = product(op, call);
  if (op.end != LinearEnd::plain) {
    with_storage(op.y, [&](auto element) {
      using S = decltype(element);
      finish_gelu<S>(whole, op.end == LinearEnd::gelu ? nullptr : call.write<S>(1));
    });
  }
  gemm(call.writes[0], whole, call.scratch.data());
}

void run(const LinearBackwardInput& op, const Call& call) {
  Gemm whole = product(op, call);
  if (op.gelu) {
    with_storage(op.dx, [&](auto element) {
      const auto* u = call.read<decltype(element)>(2);
      whole.beside = u;
      whole.finish = [u](int64_t first, float* values, int64_t count) {
        for_lanes(0, count, [&](int64_t i, auto get, auto put) {
          put(values + i, gelu_backward(get(values + i), get(u + first + i)));
        });
      };
    });
  }
  gemm(call.writes[0], whole, call.scratch.data());
}

void run(const LinearBackwardParams& op, const Call& call) {
  const auto& into = op.begins ? call.writes : call.updates;
  Gemm whole = product(op, call);
  whole.sums = reinterpret_cast<float*>(into[1]);
  gemm(into[0], whole, call.scratch.data());
}

}  // namespace ebb::cpu
