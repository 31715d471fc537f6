// Sums are taken within rows, columns and blocks, and added in their order: no result depends on
// how the work is cut.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/parameter.h"

namespace ebb::cpu {

namespace {

constexpr int64_t kBlock = Parameter<Adafactor>::kBlock;

class AdafactorUpdate {
 public:
  AdafactorUpdate(const Adafactor& op, const Call& call)
      : op_(op),
        call_(call),
        parameter_(op, call, op.factored() ? 2 : 1),
        factor_(call.read(1)[1]),
        forget_(static_cast<float>(std::pow(call.scalars->update, Adafactor::kForget))),
        keep_(static_cast<float>(1 - std::pow(call.scalars->update, Adafactor::kForget))),
        v_(call.update(parameter_.first_own())),
        columns_(op.factored() ? call.update(parameter_.first_own() + 1) : nullptr),
        step_sums_(reinterpret_cast<double*>(call.scratch.data())),
        weight_sums_(step_sums_ + op.blocks()) {}

  void run() {
    if (op_.factored()) {
      update_rows();
      update_columns();
      double sum = 0;
      for (int64_t i = 0; i < op_.rows; ++i) sum += v_[i];
      const double mean = std::max(sum / static_cast<double>(op_.rows), Adafactor::kLeast);
      by_mean_ = static_cast<float>(1 / mean);
    } else {
      each_block([&](int64_t first, int64_t n) { update_vector(first, n); });
    }
    each_block([&](int64_t first, int64_t n) { measure(first, n); });
    const double step_size = std::sqrt(sum(step_sums_));
    const double weight_size = std::max(std::sqrt(sum(weight_sums_)), Adafactor::kLeastSize);
    const double lr = call_.scalars->lr;
    rate_ = static_cast<float>(weight_size * std::min(lr, 1 / std::sqrt(call_.scalars->update)) /
                               std::max(1.0, step_size));
    each_block([&](int64_t first, int64_t n) { apply(first, n); });
  }

 private:
  template <typename Body>
  void each_block(Body body) {
    parallel_range(op_.blocks(), 16, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        body(block * kBlock, std::min(kBlock, op_.n() - block * kBlock));
      }
    });
  }

  // Of the whole tensor, for each element.
  double sum(const double* blocks) const {
    double total = 0;
    for (int64_t i = 0; i < op_.blocks(); ++i) total += blocks[i];
    return total / static_cast<double>(op_.n());
  }

  double squared(float g) const {
    const auto wide = static_cast<double>(g * factor_);
    return wide * wide;
  }

  // Elements first .. end - 1 of the gradient, at most kBlock at a time: body(values, first, n).
  template <typename Body>
  void gradient_parts(int64_t first, int64_t end, Body body) const {
    alignas(64) float memory[kBlock];
    for (int64_t at = first; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      body(parameter_.gradient(memory, at, n), at - first, n);
    }
  }

  void update_rows() {
    parallel_range(op_.rows, 1, op_.columns, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        constexpr int kSums = 8;  // side by side: each waits for its own last addition
        double sums[kSums] = {};
        const auto add = [&](const float* g, int64_t, int64_t n) {
          for (int64_t i = 0; i < n; ++i) sums[i % kSums] += squared(g[i]);
        };
        gradient_parts(row * op_.columns, (row + 1) * op_.columns, add);
        double total = 0;
        for (const double each : sums) total += each;
        move(v_[row], total / static_cast<double>(op_.columns));
      }
    });
  }

  void update_columns() {
    parallel_range(op_.columns, kBlock, op_.rows, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kBlock) {
        double sums[kBlock] = {};
        const int64_t n = std::min(kBlock, end - first);
        for (int64_t row = 0; row < op_.rows; ++row) {
          const int64_t at = row * op_.columns + first;
          gradient_parts(at, at + n, [&](const float* g, int64_t, int64_t count) {
            for (int64_t i = 0; i < count; ++i) sums[i] += squared(g[i]);
          });
        }
        for (int64_t i = 0; i < n; ++i) {
          move(columns_[first + i], sums[i] / static_cast<double>(op_.rows));
        }
      }
    });
  }

  // Not as a difference: the first update forgets all, and what is far smaller must not drown.
  void move(float& moment, double mean) const {
    moment = std::fma(keep_, moment, forget_ * static_cast<float>(mean));
  }

  void update_vector(int64_t first, int64_t n) {
    gradient_parts(first, first + n, [&](const float* g, int64_t, int64_t) {
      for (int64_t i = 0; i < n; ++i) move(v_[first + i], squared(g[i]));
    });
  }

  // g over the root of its second moment.
  void steps(float* to, int64_t first, int64_t n) const {
    constexpr auto kLeast = static_cast<float>(Adafactor::kLeast * Adafactor::kLeast);
    alignas(64) float memory[kBlock];
    const float* g = parameter_.gradient(memory, first, n);
    if (!op_.factored()) {
      for (int64_t i = 0; i < n; ++i) {
        to[i] = g[i] * factor_ / std::sqrt(std::max(v_[first + i], kLeast));
      }
      return;
    }
    for (int64_t i = 0; i < n;) {
      const int64_t row = (first + i) / op_.columns, column = (first + i) % op_.columns;
      const int64_t end = std::min(n, i + op_.columns - column);
      const float of_row = v_[row] * by_mean_;
      const float* of_columns = columns_ + column - i;
      for (; i < end; ++i) {
        to[i] = g[i] * factor_ / std::sqrt(std::max(of_row * of_columns[i], kLeast));
      }
    }
  }

  static double sum_of_squares(const float* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return sum;
  }

  void measure(int64_t first, int64_t n) const {
    alignas(64) float step[kBlock], memory[kBlock];
    steps(step, first, n);
    step_sums_[first / kBlock] = sum_of_squares(step, n);
    weight_sums_[first / kBlock] = sum_of_squares(parameter_.weight(memory, first, n), n);
  }

  void apply(int64_t first, int64_t n) const {
    alignas(64) float step[kBlock], w[kBlock], ema[kBlock];
    steps(step, first, n);
    float* weight = parameter_.weight(w, first, n);
    const auto keep = static_cast<float>(1 - call_.scalars->lr * op_.decay);
    for (int64_t i = 0; i < n; ++i) weight[i] = std::fma(weight[i], keep, -(rate_ * step[i]));
    parameter_.put_weight(weight, first, n);
    if (!parameter_.averages()) return;
    float* average = parameter_.average(ema, first, n);
    const auto share = static_cast<float>(1 - call_.scalars->ema_decay);
    for (int64_t i = 0; i < n; ++i) {
      average[i] = std::fma(share, weight[i] - average[i], average[i]);
    }
    parameter_.put_average(average, first, n);
  }

  const Adafactor& op_;
  const Call& call_;
  const Parameter<Adafactor> parameter_;
  const float factor_, forget_, keep_;
  float *v_, *columns_;
  double *step_sums_, *weight_sums_;  // of each block
  float by_mean_ = 0, rate_ = 0;
};

}  // namespace

int64_t scratch(const Adafactor& op) { return 2 * op.blocks() * 8; }

void run(const Adafactor& op, const Call& call) {
  if (!std::isfinite(call.read(1)[0])) return;
  AdafactorUpdate(op, call).run();
}

}  // namespace ebb::cpu
