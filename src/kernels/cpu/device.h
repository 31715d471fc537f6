// The CPU: the only device today. A second device is a second folder beside this one.
#pragma once

#include <string>

#include "program/device.h"

namespace ebb {

// With so many threads; 0: with as many as the team has whenever it is asked.
const Device& cpu_device(int threads = 0);

// Memory of the host in pieces, for this device and for any that works like it.
std::unique_ptr<DeviceMemory> cpu_memory(int64_t bytes, const Limits& limits);

// The kernels that this build has, in words; a device of others plans and computes otherwise.
std::string cpu_kernels();

// The instruction set that they are compiled for.
std::string cpu_isa();

// Single-precision GEMM of the shape of one linear layer's role, for the rate that the machine can
// do: dnnl_sgemm itself, with nothing of ours in between.
enum class GemmRole { forward, backward_input, backward_weight };
void plain_sgemm(GemmRole role, int64_t R, int64_t K, int64_t N, const float* a, const float* b,
                 float* c);
// A copy by all threads, for the rate that the memory can do.
void plain_copy(float* to, const float* from, int64_t n);

}  // namespace ebb
