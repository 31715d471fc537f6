// GELU, tanh form, by itself and at the end of a product.
#pragma once

#include "kernels/cpu/vec.h"

namespace ebb::cpu {

// gelu(x) = x s with s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form, rewritten
// so that one exponential and one division serve.
inline constexpr float kGeluTwoRoot = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kGeluCubic = 0.044715f;

inline Vec gelu_gate(Vec x) {
  return sigmoid(splat(kGeluTwoRoot) * x * multiply_add(splat(kGeluCubic) * x, x, splat(1.0f)));
}

inline Vec gelu(Vec x) { return x * gelu_gate(x); }

// dy times the slope at x.
inline Vec gelu_backward(Vec dy, Vec x) {
  const Vec s = gelu_gate(x);
  const Vec slope = splat(kGeluTwoRoot) * multiply_add(splat(3 * kGeluCubic) * x, x, splat(1.0f));
  return dy * s * multiply_add(x * slope, splat(1.0f) - s, splat(1.0f));
}

}  // namespace ebb::cpu
