// What every reference twin shares. A twin is the plain loop of the op's formula, templated on its
// number type: double proves the fast kernels, std::complex<double> proves the backward twins
// (f' = Im f(x + ih) / h), float shows what rounding alone does. A twin is never meant to be fast.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "program/op.h"

namespace ebb {

// An op's buffers in the order of its signature. Labels and norms are arrays of T as well;
// whole numbers are read from the real part.
template <typename T>
struct Refs {
  std::vector<const T*> reads;
  std::vector<T*> writes, updates;
  const Scalars* scalars = nullptr;
  int64_t iteration = 0;
};

// The part that comparisons, maxima and clamps look at: the infinitesimal part never decides.
template <typename T>
double real_part(const T& x) {
  return static_cast<double>(x);
}
inline double real_part(const std::complex<double>& x) { return x.real(); }

// A label or a step that is stored as a number.
template <typename T>
int64_t whole(const T& x) {
  return std::llround(real_part(x));
}

template <typename T>
T square(const T& x) {
  return x * x;
}

template <typename T>
T sigmoid(const T& x) {
  using std::exp;
  return T(1.0 / (1.0 + exp(-x)));
}

}  // namespace ebb
