// Twin of the update in a small space.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "kernels/reference/refs.h"

namespace ebb {

// Rows of `n` numbers, one after the other.
template <typename T>
class GaloreRows {
 public:
  GaloreRows(const GaloreAdamW& op, const Scalars& scalars) : op_(op), scalars_(scalars) {}

  std::vector<T> drawn(int64_t number) const {
    const int64_t n = op_.short_side(), blocks = (n + 3) / 4;
    std::vector<T> row(n);
    for (int64_t k = 0; k < n; ++k) {
      const auto block = static_cast<uint32_t>(number * blocks + k / 4);
      row[k] =
          normals(philox(scalars_.seed, static_cast<uint32_t>(Stream::projector),
                         static_cast<uint32_t>(scalars_.update), op_.adam.tensor, block))[k % 4];
    }
    return row;
  }

  // Gram and Schmidt's, twice; rows of which nothing is left are those of `old`, then drawn ones.
  void make_orthonormal(std::vector<std::vector<T>>& rows, const std::vector<std::vector<T>>& old,
                        int64_t& number) const {
    size_t kept = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      while (!stands_by_itself(rows, i)) {
        rows[i] = kept < old.size() ? old[kept++] : drawn(number++);
      }
    }
  }

  static T product(const std::vector<T>& a, const std::vector<T>& b) {
    T sum = 0;
    for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
    return sum;
  }

 private:
  static bool stands_by_itself(std::vector<std::vector<T>>& rows, size_t at) {
    using std::sqrt;
    std::vector<T>& row = rows[at];
    const T before = sqrt(product(row, row));
    if (!(real_part(before) > GaloreAdamW::kVanishing)) return false;
    for (T& x : row) x /= before;
    for (int twice = 0; twice < 2; ++twice) {
      std::vector<T> shares;
      for (size_t i = 0; i < at; ++i) shares.push_back(product(rows[i], row));
      for (size_t i = 0; i < at; ++i) {
        for (size_t k = 0; k < row.size(); ++k) row[k] -= shares[i] * rows[i][k];
      }
    }
    const T left = sqrt(product(row, row));
    if (!(real_part(left) > GaloreAdamW::kDependent)) return false;
    for (T& x : row) x /= left;
    return true;
  }

  const GaloreAdamW& op_;
  const Scalars& scalars_;
};

template <typename T>
class GaloreTwin {
 public:
  GaloreTwin(const GaloreAdamW& op, const Refs<T>& r)
      : op_(op),
        r_(r),
        own_(op.adam.split ? 2 : 1),
        q_(r.updates[own_]),
        m_(r.updates[own_ + 1]),
        v_(r.updates[own_ + 2]) {}

  void run() {
    using std::sqrt;
    if (op_.begins_period(r_.scalars->update)) begin_period();
    const Scalars& s = *r_.scalars;
    const double lr = s.lr, bias1 = s.bias1, bias2 = s.bias2, ema_decay = s.ema_decay;
    const AdamW& adam = op_.adam;
    std::vector<T> steps(op_.n(), T(0));
    for (int64_t i = 0; i < op_.long_side(); ++i) {
      for (int64_t j = 0; j < op_.rank; ++j) {
        T projected = 0;
        for (int64_t k = 0; k < op_.short_side(); ++k) projected += g(i, k) * q(j, k);
        T &m = m_[i * op_.rank + j], &v = v_[i * op_.rank + j];
        m = adam.beta1 * m + (1 - adam.beta1) * projected;
        v = adam.beta2 * v + (1 - adam.beta2) * projected * projected;
        const T step = op_.scale * lr * (m / bias1) / (sqrt(T(v / bias2)) + adam.eps);
        for (int64_t k = 0; k < op_.short_side(); ++k) steps[place(i, k)] += step * q(j, k);
      }
    }
    T* w = r_.updates[0];
    T* ema = adam.ema ? r_.updates[own_ + (adam.moments == Moments::coded ? 5 : 3)] : nullptr;
    for (int64_t i = 0; i < op_.n(); ++i) {
      w[i] = w[i] * (1 - lr * adam.decay) - steps[i];
      if (ema != nullptr) ema[i] = ema_decay * ema[i] + (1 - ema_decay) * w[i];
    }
  }

 private:
  using Rows = std::vector<std::vector<T>>;

  // Element (i, k) of the matrix with its longer side as rows.
  int64_t place(int64_t i, int64_t k) const {
    return op_.tall() ? i * op_.columns + k : k * op_.columns + i;
  }
  T g(int64_t i, int64_t k) const { return r_.reads[0][place(i, k)] * r_.reads[1][1]; }
  const T& q(int64_t j, int64_t k) const { return q_[j * op_.short_side() + k]; }

  // Each row, by the gradient and back.
  void pass(Rows& rows) const {
    for (std::vector<T>& row : rows) {
      std::vector<T> next(op_.short_side(), T(0));
      for (int64_t i = 0; i < op_.long_side(); ++i) {
        T y = 0;
        for (int64_t k = 0; k < op_.short_side(); ++k) y += g(i, k) * row[k];
        for (int64_t k = 0; k < op_.short_side(); ++k) next[k] += y * g(i, k);
      }
      row = next;
    }
  }

  void begin_period() {
    const GaloreRows<T> tools(op_, *r_.scalars);
    Rows old, rows;
    for (int64_t j = 0; j < op_.rank; ++j) {
      old.emplace_back(&q(j, 0), &q(j, 0) + op_.short_side());
      rows.push_back(tools.drawn(j));
    }
    int64_t number = op_.rank;
    for (int i = 0; i < GaloreAdamW::kPasses; ++i) {
      pass(rows);
      tools.make_orthonormal(rows, old, number);
    }
    if (r_.scalars->update > 1) carry_over(old, rows);
    for (int64_t j = 0; j < op_.rank; ++j) {
      std::copy(rows[j].begin(), rows[j].end(), q_ + j * op_.short_side());
    }
  }

  void carry_over(const Rows& old, const Rows& rows) {
    const double before = r_.scalars->update - 1;
    const double bias1 = 1 - std::pow(op_.adam.beta1, before);
    const double of_mean = (1 - std::pow(op_.adam.beta2, before)) / (bias1 * bias1);
    const int64_t rank = op_.rank;
    for (int64_t i = 0; i < op_.long_side(); ++i) {
      T *m = m_ + i * rank, *v = v_ + i * rank;
      std::vector<T> mean(rank, T(0)), around(rank, T(0));
      for (int64_t a = 0; a < rank; ++a) {
        const T apart = v[a] - of_mean * square(m[a]);
        for (int64_t b = 0; b < rank; ++b) {
          const T share = GaloreRows<T>::product(old[a], rows[b]);
          mean[b] += m[a] * share;
          if (real_part(apart) > 0) around[b] += apart * square(share);
        }
      }
      for (int64_t b = 0; b < rank; ++b) {
        m[b] = mean[b];
        v[b] = around[b] + of_mean * square(mean[b]);
      }
    }
  }

  const GaloreAdamW& op_;
  const Refs<T>& r_;
  const int own_;  // the first of the optimizer's own updates
  T *q_, *m_, *v_;
};

// The projector has no scale: it is that of the clipped gradient too.
template <typename T>
void reference(const GaloreAdamW& op, const Refs<T>& r) {
  if (std::isfinite(real_part(r.reads[1][0]))) GaloreTwin<T>(op, r).run();
}

}  // namespace ebb
