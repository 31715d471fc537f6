// The operations that code gradients for other ranks and add up what those have sent. Conventions
// as in ops.h.
//
// gate (2) is what GateCodes says of the rank's own gradient before it is coded: the norm of all
// ranks', or NaN, and the factor that clips g and takes the scalar loss_scale off it. Where it is
// read, what is coded is x = g gate[1] + residual, and what is left behind becomes the residual:
// without the scale, so that it does not matter how that moves. Sums carry the scale again. Where
// the norm is not finite nothing changes, and every number that is sent is NaN, so that the sum's
// norm is not finite either.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ebb {

struct AddTo;

// clip (2), norms (others) -> gate (2): what ClipScale says of this rank's gradients, and the norms
// of the other ranks'. The first number is this rank's norm if all are finite, else NaN.
struct GateCodes {
  static constexpr const char* kName = "gate_codes";
  int64_t others;
  AddTo measured_as() const;
  double flops() const { return 1.0 * others; }
};

// Those that move bytes and do little else cost what adding as many does.

// g (n) -> code (n) bf16: the nearest
struct EncodeBf16 {
  static constexpr const char* kName = "encode_bf16";
  int64_t n;
  AddTo measured_as() const;
  double flops() const { return 1.0 * n; }
};

// g (n), gate (2); updates residual (n) bf16 -> code (n) bf16
struct EncodeBf16Feedback {
  static constexpr const char* kName = "encode_bf16_feedback";
  int64_t n;
  AddTo measured_as() const;
  double flops() const { return 4.0 * n; }
};

// code (n) bf16; updates sum (n): sum += code, times the scalar loss_scale where it was `unscaled`
struct AddBf16 {
  static constexpr const char* kName = "add_bf16";
  int64_t n;
  bool unscaled;
  AddTo measured_as() const;
  double flops() const { return 2.0 * n; }
};

inline constexpr int64_t kCodeBlock = 256;  // elements that share a scale
constexpr int64_t code_blocks(int64_t n) { return (n + kCodeBlock - 1) / kCodeBlock; }

// g (n) -> code (n) u8, scales (blocks): 128 more than g over its block's scale, a 127th of the
// largest of the block. Rounded up or down at random so that the mean is right, keyed by (seed,
// step, tensor, element). A block that is not finite has a scale of NaN; one below 2^-126 is zeros.
struct EncodeInt8 {
  static constexpr const char* kName = "encode_int8";
  int64_t n;
  uint32_t tensor;
  double flops() const { return 12.0 * n; }
};

// code (n) u8, scales (blocks); updates sum (n)
struct AddInt8 {
  static constexpr const char* kName = "add_int8";
  int64_t n;
  AddTo measured_as() const;
  double flops() const { return 3.0 * n; }
};

// g (n), gate (2); updates residual (n) -> indices (k) i32, ascending, values (k): the k elements
// of x that are largest, of equal ones the first. At random: one of each k-th part of the tensor,
// keyed by (seed, step, tensor).
struct EncodeTopK {
  static constexpr const char* kName = "encode_top_k";
  int64_t n, k;
  bool random;
  uint32_t tensor;
  double flops() const { return (random ? 2.0 : 8.0) * n; }
};

// indices (k) i32, each another, values (k); updates sum (n)
struct AddTopK {
  static constexpr const char* kName = "add_top_k";
  int64_t n, k;
  AddTo measured_as() const;
  double flops() const { return 2.0 * k; }
};

// A matrix as a product of two that have R columns (Vogels et al. 2019): with q from the step
// before, p = x q of all ranks together is made orthonormal; then q = xᵀ p of all ranks, and p qᵀ
// is their sum.
inline constexpr int64_t kMostColumns = 64;  // that R may be

// g (N, K), gate (2), q (K, R); updates residual (N, K), which becomes x -> p (N, R) = x q
struct PowerProject {
  static constexpr const char* kName = "power_project";
  int64_t N, K, R;
  double flops() const { return 2.0 * N * K * (R + 1); }
};

// updates p (N, R): its columns made orthonormal in their order. One that lies among those before
// it becomes zeros.
struct Orthonormalize {
  static constexpr const char* kName = "orthonormalize";
  int64_t N, R;
  double flops() const { return 4.0 * N * R * (R + 1); }
};

// gate (2), p (N, R); updates residual (N, K), from which p qᵀ is taken -> q (K, R) = residualᵀ p
struct PowerBack {
  static constexpr const char* kName = "power_back";
  int64_t N, K, R;
  double flops() const { return 4.0 * N * K * R; }
};

// p (N, R), q (K, R) of all ranks -> sum (N, K) = p qᵀ
struct PowerSum {
  static constexpr const char* kName = "power_sum";
  int64_t N, K, R;
  double flops() const { return 2.0 * N * K * R; }
};

// gate (2), q (K, R) of all ranks; updates warm (K, R), the next step's q. Columns of q that are
// zeros, or not finite, leave warm's as they are: they would never be anything else again.
struct PowerKeep {
  static constexpr const char* kName = "power_keep";
  int64_t K, R;
  AddTo measured_as() const;
  double flops() const { return 1.0 * K * R; }
};

constexpr int64_t sign_bytes(int64_t n) { return (n + 7) / 8; }

// x (n), gate (2); updates residual (n) -> bits (sign_bytes) u8, scale (1): the signs of x gate[1]
// + residual, the first the lowest bit, 1 where it is not negative, and the mean of its magnitudes.
struct SignEncode {
  static constexpr const char* kName = "sign_encode";
  int64_t n;
  AddTo measured_as() const;
  double flops() const { return 6.0 * n; }
};

// The same of this rank's part of the next momentum, so that those of all groups are the momentum.
// g (n), gate (2), m (n); updates residual (n) -> bits, scale: of m beta1 / groups + (1 - beta1) g
// gate[1] + residual.
struct SignMomentum {
  static constexpr const char* kName = "sign_momentum";
  int64_t n;
  double beta1;
  int64_t groups;
  AddTo measured_as() const;
  double flops() const { return 8.0 * n; }
};

// bits (sign_bytes) u8, scale (1), clip (2); updates m (n): the scale, or less it. Does nothing
// when the norm is not finite.
struct SignKeep {
  static constexpr const char* kName = "sign_keep";
  int64_t n;
  AddTo measured_as() const;
  double flops() const { return 1.0 * n; }
};

// bits (sign_bytes) u8, scale (1); updates sum (n): sum += the scale, or less it
struct SignAdd {
  static constexpr const char* kName = "sign_add";
  int64_t n;
  AddTo measured_as() const;
  double flops() const { return 1.0 * n; }
};

}  // namespace ebb
