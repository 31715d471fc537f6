// AdamW in a small space: two products of the register-blocked kind, with the optimizer between
// them. The second one ends in the weight, so that a step of its size stands nowhere.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "kernels/cpu/adam.h"
#include "kernels/cpu/adam_moments.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/orthonormal.h"
#include "kernels/cpu/pages.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/parameter.h"

namespace ebb::cpu {

namespace {

Matrix rows_in(const float* data, int64_t width) { return {data, DType::f32, width, 1}; }
Matrix turned(const Matrix& m) { return {m.data, m.type, m.col, m.row}; }

// The products of an update. Those of the gradient see it with its longer side as rows.
class SmallSpace {
 public:
  explicit SmallSpace(const GaloreAdamW& op, const void* g = nullptr)
      : op_(op),
        gradient_(op.tall() ? Matrix{g, op.adam.g, op.columns, 1}
                            : Matrix{g, op.adam.g, 1, op.columns}) {}

  // (long, rank): the gradient times q (rank, short) transposed.
  Gemm into(const float* q) const {
    return {op_.long_side(), op_.rank, op_.short_side(), gradient_,
            turned(rows_in(q, op_.short_side()))};
  }
  // (rank, short): y (long, rank) transposed times the gradient.
  Gemm back(const float* y) const {
    return {op_.rank, op_.short_side(), op_.long_side(), turned(rows_in(y, op_.rank)), gradient_};
  }
  // (rank, rank): each row of `before` times each of `after`.
  Gemm between(const float* before, const float* after) const {
    return {op_.rank, op_.rank, op_.short_side(), rows_in(before, op_.short_side()),
            turned(rows_in(after, op_.short_side()))};
  }
  // (long, rank): y (long, rank) times `turn` (rank, rank).
  Gemm turning(const float* y, const float* turn) const {
    return {op_.long_side(), op_.rank, op_.rank, rows_in(y, op_.rank), rows_in(turn, op_.rank)};
  }
  // (rows, columns): steps (long, rank) times q.
  Gemm out_of(const float* steps, const float* q) const {
    const Matrix small = rows_in(steps, op_.rank), projector = rows_in(q, op_.short_side());
    Gemm product = op_.tall()
                       ? Gemm{op_.rows, op_.columns, op_.rank, small, projector}
                       : Gemm{op_.rows, op_.columns, op_.rank, turned(projector), turned(small)};
    product.passed_on = true;
    return product;
  }

  int64_t scratch_bytes() const {
    int64_t most = 0;
    for (const Gemm& product : {into(nullptr), back(nullptr), between(nullptr, nullptr),
                                turning(nullptr, nullptr), out_of(nullptr, nullptr)}) {
      most = std::max(most, gemm_scratch_bytes(product));
    }
    return most;
  }

 private:
  const GaloreAdamW& op_;
  const Matrix gradient_;
};

// What an update needs beside its state.
struct Parts {
  int64_t small, other, q, turn, shares, products, bytes;  // where each begins
  explicit Parts(const GaloreAdamW& op) {
    int64_t next = 0;
    const auto take = [&](int64_t count, size_t size) {
      return std::exchange(next, next + whole_lines(count * static_cast<int64_t>(size)));
    };
    small = take(op.adam.n, sizeof(float));
    other = take(op.adam.n, sizeof(float));
    q = take(op.rank * op.short_side(), sizeof(float));
    turn = take(op.rank * op.rank, sizeof(float));
    shares = take(op.rank, sizeof(double));
    products = take(SmallSpace(op).scratch_bytes(), 1);
    bytes = next;
  }
};

class GaloreUpdate {
 public:
  GaloreUpdate(const GaloreAdamW& op, const Call& call)
      : op_(op),
        call_(call),
        rates_(op.adam, call.read(1)[1], *call.scalars),
        parameter_(op.adam, call, 1 + AdamMoments::updates(op.adam)),
        moments_(op.adam, call, parameter_.first_own() + 1),
        q_(call.update(parameter_.first_own())),
        space_(op, call.reads[0]),
        parts_(op),
        small_(at<float>(parts_.small)),
        other_(at<float>(parts_.other)),
        next_q_(at<float>(parts_.q)),
        turn_(at<float>(parts_.turn)) {}

  void run() {
    if (op_.begins_period(call_.scalars->update)) begin_period();
    multiply(small_, space_.into(q_));
    each_block([&](int64_t first, int64_t n) { step(first, n); });
    move_weight();
  }

 private:
  template <typename T>
  T* at(int64_t place) const {
    return reinterpret_cast<T*>(call_.scratch.data() + place);
  }
  void multiply(void* c, const Gemm& product) const {
    gemm(c, product, at<std::byte>(parts_.products));
  }
  template <typename Body>
  void each_block(Body body) const {
    parallel_range(op_.adam.blocks(), 16, kMomentBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kMomentBlock;
        body(first, std::min(kMomentBlock, op_.adam.n - first));
      }
    });
  }

  // ---- an update

  // Of the projected gradient: the step in its place.
  void step(int64_t first, int64_t n) const {
    alignas(64) float m[kMomentBlock], v[kMomentBlock];
    float* steps = small_ + first;
    const AdamBlock b{steps,   nullptr, moments_.first(m, first, n), moments_.second(v, first, n),
                      nullptr, n};
    const Vec scale = splat(static_cast<float>(op_.scale));
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      put(steps + i, adam_step(b, rates_, i, get, put) * scale);
    });
    if (!moments_.coded()) return;
    uint32_t words[kRandomWords];
    parameter_.random(words, Stream::moment_rounding, first);
    moments_.put_at_random(b.m, b.v, first, n, words);
  }

  void move_weight() const {
    Gemm product = space_.out_of(small_, q_);
    if (!op_.adam.split) product.beside = call_.updates[0];
    product.finish = [this](int64_t first, const float* steps, int64_t count) {
      for (int64_t i = 0; i < count;) {
        const int64_t in_block = kMomentBlock - (first + i) % kMomentBlock;
        const int64_t n = std::min(count - i, in_block);
        move(first + i, steps + i, n);
        i += n;
      }
    };
    multiply(nullptr, product);
  }

  // A part of a block of the weight, and the average.
  void move(int64_t first, const float* steps, int64_t n) const {
    alignas(64) float w[kMomentBlock], ema[kMomentBlock];
    float* weight = parameter_.weight(w, first, n);
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      put(weight + i, multiply_less(get(weight + i), rates_.keep, get(steps + i)));
    });
    parameter_.put_weight(weight, first, n);
    if (!parameter_.averages()) return;
    float* average = parameter_.average(ema, first, n);
    for_lanes(0, n, [&](int64_t i, auto get, auto put) {
      const Vec before = get(average + i);
      put(average + i, multiply_add(rates_.ema_share, get(weight + i) - before, before));
    });
    parameter_.put_average(average, first, n);
  }

  // ---- a period begins

  void begin_period() const {
    const int64_t length = op_.short_side();
    draw(next_q_, 0, op_.rank);
    int64_t kept = 0, drawn = op_.rank;
    for (int pass = 0; pass < GaloreAdamW::kPasses; ++pass) {
      multiply(other_, space_.into(next_q_));
      multiply(next_q_, space_.back(other_));
      kept = 0;
      make_orthonormal(next_q_, op_.rank, length, at<double>(parts_.shares), [&](float* row) {
        if (kept < op_.rank) {
          std::copy_n(q_ + kept++ * length, length, row);
        } else {
          draw(row, drawn++, 1);
        }
      });
    }
    if (call_.scalars->update > 1) carry_over();
    std::copy_n(next_q_, op_.rank * length, q_);
  }

  // Rows of standard normal numbers: those of these numbers.
  void draw(float* rows, int64_t first, int64_t count) const {
    const int64_t length = op_.short_side(), blocks = (length + 3) / 4;
    const Scalars& s = *call_.scalars;
    parallel_range(count * blocks, 64, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto values = normals(philox(s.seed, static_cast<uint32_t>(Stream::projector),
                                           static_cast<uint32_t>(s.update), op_.adam.tensor,
                                           static_cast<uint32_t>(first * blocks + i)));
        const int64_t row = i / blocks, at = i % blocks * 4;
        for (int64_t k = at; k < std::min(at + 4, length); ++k) {
          rows[row * length + k] = static_cast<float>(values[k - at]);
        }
      }
    });
  }

  // The moments, as far as the new space has what they are of. A mean turns with the space. A
  // second moment is a mean's square and what there is around it, which is taken to be independent
  // from row to row of the projector: its parts add up by the squares of what each has of the new
  // row.
  void carry_over() const {
    const double before = call_.scalars->update - 1;
    const double bias1 = 1 - std::pow(op_.adam.beta1, before);
    const double bias2 = 1 - std::pow(op_.adam.beta2, before);
    const Vec of_mean = splat(static_cast<float>(bias2 / (bias1 * bias1)));
    multiply(turn_, space_.between(q_, next_q_));
    each_block([&](int64_t first, int64_t n) {
      alignas(64) float memory[kMomentBlock];
      std::copy_n(moments_.first(memory, first, n), n, other_ + first);
    });
    multiply(small_, space_.turning(other_, turn_));
    each_block([&](int64_t first, int64_t n) {
      alignas(64) float memory[kMomentBlock];
      moments_.set_first(small_ + first, first, n);
      const float* v = moments_.second(memory, first, n);
      float *mean = other_ + first, *turned_mean = small_ + first;
      for_lanes(0, n, [&](int64_t i, auto get, auto put) {
        const Vec m = get(mean + i), now = get(turned_mean + i);
        put(mean + i, max(Vec{}, less_product(get(v + i), of_mean * m, m)));
        put(turned_mean + i, of_mean * now * now);
      });
    });
    for (int64_t i = 0; i < op_.rank * op_.rank; ++i) turn_[i] *= turn_[i];
    Gemm product = space_.turning(other_, turn_);
    product.accumulate = true;
    multiply(small_, product);
    each_block([&](int64_t first, int64_t n) { moments_.set_second(small_ + first, first, n); });
  }

  const GaloreAdamW& op_;
  const Call& call_;
  const AdamRates rates_;
  const Parameter<AdamW> parameter_;
  const AdamMoments moments_;
  float* const q_;
  const SmallSpace space_;
  const Parts parts_;
  float *const small_, *const other_;  // (long, rank) each
  float *const next_q_, *const turn_;
};

}  // namespace

int64_t scratch(const GaloreAdamW& op) { return Parts(op).bytes; }

void run(const GaloreAdamW& op, const Call& call) {
  if (!std::isfinite(call.read(1)[0])) return;
  GaloreUpdate(op, call).run();
}

}  // namespace ebb::cpu
