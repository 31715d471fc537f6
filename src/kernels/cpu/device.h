// The CPU: the only device today. A second device is a second folder beside this one.
#pragma once

#include <string>

#include "program/op.h"

namespace ebb {

const Device& cpu_device();

// Threads that kernels use from now on. To be set once, before the first program is written:
// scratch depends on it.
void set_cpu_threads(int threads);
int cpu_threads();

// CPUs that this process may run on, by its affinity mask.
int allowed_cpus();

// The instruction set that oneDNN found, for `bench` and the calibration's identity.
std::string cpu_isa();

// Brings up the thread team and oneDNN's own packing memory, so that they are there to be measured
// before memory is planned.
void warm_up_cpu();
int64_t warm_up_bytes();  // what warm_up_cpu takes for itself while it runs, and gives back

// Rates of this machine now, from a short probe (about 50 ms): matrix products and memory.
struct MeasuredRates {
  double flops, bytes;  // per second
};
MeasuredRates measure_rates();

// Single-precision GEMM of the shape of one linear layer's role, for the rate that the machine can
// do: dnnl_sgemm itself, with nothing of ours in between.
enum class GemmRole { forward, backward_input, backward_weight };
void plain_sgemm(GemmRole role, int64_t R, int64_t K, int64_t N, const float* a, const float* b,
                 float* c);

}  // namespace ebb
