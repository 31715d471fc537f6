// The operations of an update: the gradient's norm, the optimizers, what shrinks weights towards
// zero. Conventions as in ops.h.
#pragma once

#include <cstdint>

#include "program/dtype.h"

namespace ebb {

// g (n) -> norms (f64, element `slot`): sum of squares
struct SquaredNorm {
  static constexpr const char* kName = "squared_norm";
  int64_t n, slot;
  DType g = DType::f32;
  double flops() const { return 2.0 * n; }
};

// norms (f64, `count` of them from `first`) -> clip (2): the norm of them all without the scalar
// loss_scale, and the factor that every gradient is multiplied by, which takes that scale off.
// limit 0: never clipped.
struct ClipScale {
  static constexpr const char* kName = "clip_scale";
  int64_t first, count;
  float limit;
  double flops() const { return 1.0 * count; }
};

// How the moments and the average of a tensor are stored.
inline constexpr int64_t kMomentBlock = 256;  // elements that share a scale
enum class Moments : uint8_t {
  f32,
  coded,  // a byte of a 256-entry code each, times the largest of its block: kernels/moment_code.h
};

// g (n), clip (2); updates w (n), [low (n)], m (n), v (n), [m_scale, v_scale (blocks)], [ema (n)].
// Does nothing when the norm is not finite. `frozen`: v stays as it is, with the scalar
// frozen_bias2, and g is the next m, times the scalar loss_scale: it is not clipped any more. With
// `split`, w is bf16 and low (i16) what it is off by. An average that is bf16 is rounded up or down
// at random, keyed by (seed, step, tensor, element), so that its mean is right.
struct AdamW {
  static constexpr const char* kName = "adamw";
  int64_t n;
  double beta1, beta2, eps, decay;  // double: 1 - beta must not lose digits
  bool ema;
  DType g = DType::f32;
  bool split = false;
  Moments moments = Moments::f32;
  DType average = DType::f32;
  uint32_t tensor = 0;
  bool frozen = false;
  int64_t blocks() const { return (n + kMomentBlock - 1) / kMomentBlock; }
  double flops() const { return 15.0 * n; }
};

// g (n), clip (2); updates w (n), [low (n)], m (n), [m_scale (blocks)], [ema (n)]: w moves by the
// learning rate against the sign of beta1 m + (1 - beta1) g (Chen et al. 2023). All else as AdamW.
struct Lion {
  static constexpr const char* kName = "lion";
  int64_t n;
  double beta1, beta2, decay;
  bool ema;
  DType g = DType::f32;
  bool split = false;
  Moments moments = Moments::f32;
  DType average = DType::f32;
  uint32_t tensor = 0;
  int64_t blocks() const { return (n + kMomentBlock - 1) / kMomentBlock; }
  double flops() const { return 9.0 * n; }
};

// g (n), clip (2); updates w (n), [low (n)], v_row (rows) and v_col (columns) of a matrix or v (n)
// of a vector, [ema (n)]. The second moment is the product of its rows' and columns' means (Shazeer
// and Stern 2018), the step is a share of the weights' own size, as torch.optim.Adafactor has it
// with its defaults. All else as AdamW.
struct Adafactor {
  static constexpr const char* kName = "adafactor";
  static constexpr double kForget = -0.8;          // update^kForget: what an update forgets of v
  static constexpr double kLeast = 1.1920929e-07;  // of a mean, and of a root of v
  static constexpr double kLeastSize = 1e-3;       // of a tensor: its root mean square
  int64_t rows, columns;                           // a vector is one row
  double decay;
  bool ema;
  DType g = DType::f32;
  bool split = false;
  DType average = DType::f32;
  uint32_t tensor = 0;
  int64_t n() const { return rows * columns; }
  bool factored() const { return rows > 1; }
  int64_t blocks() const { return (n() + kMomentBlock - 1) / kMomentBlock; }
  double flops() const { return 20.0 * n(); }
};

// Weights towards zero, after their update, by as much as the learning rate times each penalty: the
// proximal steps of L1 and of the group lasso, each number first, then each structure as a whole.
// Along its axis, index i of a tensor is of structure (i / width) % structures.

// w (rows, columns), [low]; updates squares (structures) f64, or -> squares where they begin: the
// sums of squares of what Shrink's first step leaves of each structure.
struct StructureSquares {
  static constexpr const char* kName = "structure_squares";
  int64_t rows, columns, structures, width;
  bool by_columns;  // the axis: columns, or else rows
  bool begins;
  double l1 = 0;
  bool split = false;
  int64_t n() const { return rows * columns; }
  double flops() const { return 4.0 * n(); }
};

// clip (2), [squares (structures) f64]; updates w (rows, columns), [low], [ema]. Each number by l1,
// then each structure by `lasso`, which is its penalty times the root of its size; 0: none. Then
// the average, as an optimizer's update would. Does nothing when the norm is not finite.
struct Shrink {
  static constexpr const char* kName = "shrink";
  int64_t rows, columns;
  double l1;
  bool ema;
  double lasso = 0;
  int64_t structures = 0, width = 0;
  bool by_columns = false;
  bool split = false;
  DType average = DType::f32;
  uint32_t tensor = 0;
  int64_t n() const { return rows * columns; }
  int64_t blocks() const { return (n() + kMomentBlock - 1) / kMomentBlock; }
  double flops() const { return 6.0 * n(); }
};

}  // namespace ebb
