// A structure's sum is one thread's, in an order of its own: no result depends on how work is cut.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/parameter.h"

namespace ebb::cpu {

namespace {

// What the proximal step of L1 leaves.
Vec nearer_zero(Vec x, Vec by) {
  const Vec zero = splat(0.0f);
  return x > by ? x - by : x < -by ? x + by : zero;
}

float threshold(double l1, const Call& call) {
  return static_cast<float>(static_cast<double>(call.scalars->lr) * l1);
}

// ---- squares

class Squares {
 public:
  Squares(const StructureSquares& op, const Call& call)
      : op_(op),
        call_(call),
        by_(threshold(op.l1, call)),
        sums_(op.begins ? call.write<double>(0) : call.update<double>(0)) {}

  void run() const {
    const int64_t work = op_.n() / op_.structures;
    parallel_range(op_.structures, 16, work, [&](int64_t begin, int64_t end) {
      if (op_.begins) std::fill(sums_ + begin, sums_ + end, 0.0);
      op_.by_columns ? add_columns(begin, end) : add_rows(begin, end);
    });
  }

 private:
  static constexpr int64_t kPart = 256;

  // Squares of elements [first, first + n), n <= kPart.
  void squares(double* out, int64_t first, int64_t n) const {
    alignas(64) float values[kPart];
    if (op_.split) {
      const Bf16* high = call_.read<Bf16>(0) + first;
      const int16_t* low = call_.read<int16_t>(1) + first;
      for (int64_t i = 0; i < n; ++i) values[i] = SplitFloat{high[i], low[i]}.whole();
    } else {
      std::copy_n(call_.read(0) + first, n, values);
    }
    const Vec by = splat(by_);
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      put(values + i, nearer_zero(get(values + i), by));
    });
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<double>(values[i]) * values[i];
  }

  void add_rows(int64_t begin, int64_t end) const {
    double part[kPart];
    for (int64_t group = 0; group < op_.rows; group += op_.structures * op_.width) {
      for (int64_t s = begin; s < end; ++s) {
        const int64_t first = (group + s * op_.width) * op_.columns;
        const int64_t count = op_.width * op_.columns;
        double sums[8] = {};  // side by side: each waits for its own last addition
        for (int64_t at = 0; at < count; at += kPart) {
          const int64_t n = std::min(kPart, count - at);
          squares(part, first + at, n);
          for (int64_t i = 0; i < n; ++i) sums[i % 8] += part[i];
        }
        for (const double sum : sums) sums_[s] += sum;
      }
    }
  }

  void add_columns(int64_t begin, int64_t end) const {
    // Of each column of this part, row after row; then column after column.
    double* const own = reinterpret_cast<double*>(call_.scratch.data());
    const int64_t first = begin * op_.width, last = end * op_.width;
    std::fill(own + first, own + last, 0.0);
    double part[kPart];
    for (int64_t row = 0; row < op_.rows; ++row) {
      for (int64_t at = first; at < last; at += kPart) {
        const int64_t n = std::min(kPart, last - at);
        squares(part, row * op_.columns + at, n);
        for (int64_t i = 0; i < n; ++i) own[at + i] += part[i];
      }
    }
    for (int64_t i = first; i < last; ++i) sums_[i / op_.width] += own[i];
  }

  const StructureSquares& op_;
  const Call& call_;
  const float by_;
  double* const sums_;
};

// ---- shrinking

class Shrinking {
 public:
  Shrinking(const Shrink& op, const Call& call)
      : op_(op),
        call_(call),
        parameter_(op, call, 0),
        by_(splat(threshold(op.l1, call))),
        ema_share_(splat(static_cast<float>(1 - call.scalars->ema_decay))),
        factors_(reinterpret_cast<float*>(call.scratch.data())) {
    if (op.lasso > 0) set_factors();
  }

  void run(int64_t first, int64_t n) const {
    alignas(64) float w[kMomentBlock], ema[kMomentBlock];
    float* const weight = parameter_.weight(w, first, n);
    op_.lasso > 0 ? shrink_structures(weight, first, n)
                  : for_lanes(0, n, [&](int64_t i, auto get, auto put) {
                      put(weight + i, nearer_zero(get(weight + i), by_));
                    });
    parameter_.put_weight(weight, first, n);
    if (!parameter_.averages()) return;
    float* const average = parameter_.average(ema, first, n);
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      const Vec off = get(weight + i) - get(average + i);
      put(average + i, multiply_add(ema_share_, off, get(average + i)));
    });
    parameter_.put_average(average, first, n);
  }

 private:
  // Of each index along the axis.
  void set_factors() {
    const double* squares = call_.read<double>(1);
    const double penalty = static_cast<double>(call_.scalars->lr) * op_.lasso;
    const int64_t extent = op_.by_columns ? op_.columns : op_.rows;
    for (int64_t i = 0; i < extent; ++i) {
      const double norm = std::sqrt(squares[i / op_.width % op_.structures]);
      factors_[i] = norm > penalty ? static_cast<float>(1 - penalty / norm) : 0.0f;
    }
  }

  void shrink_structures(float* weight, int64_t first, int64_t n) const {
    for (int64_t done = 0; done < n;) {
      const int64_t row = (first + done) / op_.columns, column = (first + done) % op_.columns;
      const int64_t count = std::min(n - done, op_.columns - column);
      float* const part = weight + done;
      const float* const factors = factors_ + column;
      const Vec of_row = splat(op_.by_columns ? 0.0f : factors_[row]);
      for_lanes(0, count, [&](int64_t i, auto get, auto put) {
        const Vec factor = op_.by_columns ? get(factors + i) : of_row;
        put(part + i, nearer_zero(get(part + i), by_) * factor);
      });
      done += count;
    }
  }

  const Shrink& op_;
  const Call& call_;
  const Parameter<Shrink> parameter_;
  const Vec by_, ema_share_;
  float* const factors_;
};

}  // namespace

int64_t scratch(const StructureSquares& op) { return op.by_columns ? op.columns * 8 : 0; }
int64_t scratch(const Shrink& op) {
  return op.lasso > 0 ? (op.by_columns ? op.columns : op.rows) * 4 : 0;
}

void run(const StructureSquares& op, const Call& call) { Squares(op, call).run(); }

void run(const Shrink& op, const Call& call) {
  if (!std::isfinite(call.read(0)[0])) return;
  const Shrinking shrinking(op, call);
  parallel_range(op.blocks(), 16, kMomentBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kMomentBlock;
      shrinking.run(first, std::min(kMomentBlock, op.n() - first));
    }
  });
}

}  // namespace ebb::cpu
