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

// Ends the threads of the team; the next kernel starts them again. A process that is about to fork
// must have none: the child would wait for threads that it does not have.
void end_cpu_threads();

// CPUs that this process may run on, by its affinity mask.
int allowed_cpus();

// The instruction set that oneDNN found, for `bench` and the calibration's identity.
std::string cpu_isa();

// Makes the code that the op will run, where it is made for its shape, so that the first step takes
// no memory that the second does not.
void prepare_cpu(const OpParams& params);
// Gives back all such code, and what is known of shapes that the planner asked about.
void forget_cpu_kernels();

// Whether oneDNN packs matrices in memory that it takes by itself, which no plan can own: without
// AVX-512 it does.
bool cpu_packs_by_itself();

// Runs a linear layer forward and backward once, in memory of its own that it gives back: brings up
// the thread team and the packing memory that oneDNN takes by itself, so that both can be measured
// before memory is planned. Returns the bytes that it took for operands and scratch.
int64_t warm_up_cpu(const Linear& shape);

// Single-precision GEMM of the shape of one linear layer's role, for the rate that the machine can
// do: dnnl_sgemm itself, with nothing of ours in between.
enum class GemmRole { forward, backward_input, backward_weight };
void plain_sgemm(GemmRole role, int64_t R, int64_t K, int64_t N, const float* a, const float* b,
                 float* c);
// A copy by all threads, for the rate that the memory can do.
void plain_copy(float* to, const float* from, int64_t n);

}  // namespace ebb
