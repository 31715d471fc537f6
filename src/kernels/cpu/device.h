// The CPU: the only device today. A second device is a second folder beside this one.
#pragma once

#include <string>

#include "program/op.h"

namespace ebb {

const Device& cpu_device();

// The instruction set that the kernels are compiled for, for `bench` and the calibration's
// identity.
std::string cpu_isa();

// Single-precision GEMM of the shape of one linear layer's role, for the rate that the machine can
// do: dnnl_sgemm itself, with nothing of ours in between.
enum class GemmRole { forward, backward_input, backward_weight };
void plain_sgemm(GemmRole role, int64_t R, int64_t K, int64_t N, const float* a, const float* b,
                 float* c);
// A copy by all threads, for the rate that the memory can do.
void plain_copy(float* to, const float* from, int64_t n);

}  // namespace ebb
