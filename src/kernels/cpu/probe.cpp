// What the machine can do, with nothing of ours in between.
#include <dnnl.h>
#include <omp.h>

#include "base/threads.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb {

void plain_sgemm(GemmRole role, int64_t R, int64_t K, int64_t N, const float* a, const float* b,
                 float* c) {
  omp_set_num_threads(team_threads());  // oneDNN's threads are OpenMP's
  switch (role) {
    case GemmRole::forward:  // c (R, N) = a (R, K) b (N, K)ᵀ
      dnnl_sgemm('N', 'T', R, N, K, 1.0f, a, K, b, K, 0.0f, c, N);
      return;
    case GemmRole::backward_input:  // c (R, K) = a (R, N) b (N, K)
      dnnl_sgemm('N', 'N', R, K, N, 1.0f, a, N, b, K, 0.0f, c, K);
      return;
    case GemmRole::backward_weight:  // c (N, K) += a (R, N)ᵀ b (R, K)
      dnnl_sgemm('T', 'N', N, K, R, 1.0f, a, N, b, K, 1.0f, c, K);
      return;
  }
}

void plain_copy(float* to, const float* from, int64_t n) {
  cpu::parallel_range(n, 4096, 1, [&](int64_t begin, int64_t end) {
    cpu::for_lanes(begin, end, [&](int64_t i, auto get, auto put) { put(to + i, get(from + i)); });
  });
}

}  // namespace ebb
