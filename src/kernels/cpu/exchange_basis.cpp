// The columns of a narrow matrix made orthonormal: what each has of those before it is taken away
// one after the other, and again, for rounding leaves some the first time. A product of two columns
// is one thread's, summed in double in an order of its own.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/exchange_gate.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

namespace {

// A column of which less than this share is left had nothing of its own but rounding. Of one that
// is shorter than any number of full precision, the inverse would be no number.
constexpr double kLeastLeft = 1e-6;
constexpr double kLeastLength = std::numeric_limits<float>::min();

class Columns {
 public:
  Columns(const Orthonormalize& op, const Call& call)
      : N_(op.N),
        R_(op.R),
        p_(call.update(0)),
        before_(reinterpret_cast<double*>(call.scratch.data())),
        columns_(reinterpret_cast<float*>(before_ + op.R)) {}

  void run() const {
    each_column(0, [&](int64_t j) {
      for (int64_t i = 0; i < N_; ++i) column(j)[i] = p_[i * R_ + j];
    });
    sweep();
    sweep();
    parallel_range(N_, 16, R_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < R_; ++j) p_[i * R_ + j] = column(j)[i];
      }
    });
  }

 private:
  float* column(int64_t j) const { return columns_ + j * N_; }
  double size(int64_t j) const { return std::sqrt(dot(column(j), column(j), N_)); }

  template <typename Body>
  void each_column(int64_t first, Body body) const {
    parallel_range(R_ - first, 1, N_, [&](int64_t begin, int64_t end) {
      for (int64_t j = first + begin; j < first + end; ++j) body(j);
    });
  }

  void sweep() const {
    each_column(0, [&](int64_t j) { before_[j] = size(j); });
    for (int64_t j = 0; j < R_; ++j) {
      set_length(j);
      each_column(j + 1, [&](int64_t later) { take_away(j, later); });
    }
  }

  // 1, or 0 where nothing is left. What is not finite becomes NaN, all of it.
  void set_length(int64_t j) const {
    const double left = size(j);
    float* x = column(j);
    if (std::isfinite(left) && left <= std::max(kLeastLength, kLeastLeft * before_[j])) {
      std::fill_n(x, N_, 0.0f);
      return;
    }
    const Vec by = splat(static_cast<float>(std::isfinite(left) ? 1 / left : kNotANumber));
    for_lanes(0, N_, [&](int64_t i, auto get, auto put) { put(x + i, get(x + i) * by); });
  }

  void take_away(int64_t j, int64_t later) const {
    const float* unit = column(j);
    float* x = column(later);
    const Vec share = splat(static_cast<float>(dot(unit, x, N_)));
    for_lanes(0, N_, [&](int64_t i, auto get, auto put) {
      put(x + i, less_product(get(x + i), get(unit + i), share));
    });
  }

  const int64_t N_, R_;
  float* p_;
  double* before_;  // of each column: how long it was
  float* columns_;  // one after the other
};

}  // namespace

int64_t scratch(const Orthonormalize& op) {
  return op.R * static_cast<int64_t>(sizeof(double)) +
         op.N * op.R * static_cast<int64_t>(sizeof(float));
}

void run(const Orthonormalize& op, const Call& call) { Columns(op, call).run(); }

}  // namespace ebb::cpu
