// Linear layers: y (R, N) = x (R, K) w (N, K)ᵀ + bias.
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

Strided rows_of(const float* matrix, int64_t width) { return {matrix, width, 1}; }
Strided transposed(const Strided& m) { return {m.data, m.col, m.row}; }

constexpr int64_t kBiasRows = 128;  // rows summed into one partial result
int64_t bias_chunks(const LinearBackwardBias& op) { return (op.R + kBiasRows - 1) / kBiasRows; }

}  // namespace

int64_t scratch(const Linear& op) { return gemm_scratch_bytes(op.R, op.N, op.K); }
int64_t scratch(const LinearBackwardInput& op) { return gemm_scratch_bytes(op.R, op.K, op.N); }
int64_t scratch(const LinearBackwardWeight& op) { return gemm_scratch_bytes(op.N, op.K, op.R); }
int64_t scratch(const LinearBackwardBias& op) { return bias_chunks(op) * op.N * 4; }

void run(const Linear& op, const Call& call) {
  const Strided x = rows_of(call.read(0), op.K);
  const Strided w = rows_of(call.read(1), op.K);
  gemm(call.write(0), {op.R, op.N, op.K, x, transposed(w), call.read(2)}, call.scratch.data());
}

void run(const LinearBackwardInput& op, const Call& call) {
  const Strided dy = rows_of(call.read(0), op.N);
  const Strided w = rows_of(call.read(1), op.K);
  gemm(call.write(0), {op.R, op.K, op.N, dy, w}, call.scratch.data());
}

void run(const LinearBackwardWeight& op, const Call& call) {
  const Strided dy = rows_of(call.read(0), op.N);
  const Strided x = rows_of(call.read(1), op.K);
  gemm(op.begins ? call.write(0) : call.update(0),
       {op.N, op.K, op.R, transposed(dy), x, nullptr, !op.begins}, call.scratch.data());
}

void run(const LinearBackwardBias& op, const Call& call) {
  const float* dy = call.read(0);
  float* db = call.update(0);
  auto* partial = reinterpret_cast<float*>(call.scratch.data());
  const int64_t chunks = bias_chunks(op);
  parallel_range(chunks, 1, kBiasRows * op.N, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* sums = partial + chunk * op.N;
      std::memset(sums, 0, op.N * sizeof(float));
      for (int64_t r = chunk * kBiasRows; r < std::min(op.R, (chunk + 1) * kBiasRows); ++r) {
        const float* row = dy + r * op.N;
        for (int64_t i = 0; i < op.N; ++i) sums[i] += row[i];
      }
    }
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t i = 0; i < op.N; ++i) db[i] += partial[chunk * op.N + i];
  }
}

}  // namespace ebb::cpu
