// Gradients as products of two narrow matrices. Every sum is one chain of multiply-adds in the
// order of what is summed over; a matrix is read where it lies, and only once by each pass.
#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/exchange_gate.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_gemm.h"

namespace ebb::cpu {

namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

void check_columns(int64_t R) {
  require(R <= kMostColumns, "gradients as products: {} columns, at most {}", R, kMostColumns);
}

}  // namespace

// ---- p = x q ------------------------------------------------------------------------------------

namespace {

// Rows and columns of x that pass through the second-level cache together.
constexpr int64_t kRowsTogether = 24, kDepth = 1024;
static_assert(kMostColumns % kLanes == 0);

class Projection {
 public:
  Projection(const PowerProject& op, const Call& call, float factor)
      : op_(op),
        g_(call.read(0)),
        q_(call.read(2)),
        p_(call.write(0)),
        x_(call.update(0)),
        factor_(splat(factor)),
        packed_(reinterpret_cast<float*>(call.scratch.data())) {}

  void run() const {
    const int64_t blocks = blocks_of(op_.K, kDepth);
    parallel_range(blocks, 1, kDepth * op_.R, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) pack(block * kDepth);
    });
    parallel_range(op_.N, kTileRows, op_.K, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kRowsTogether) {
        project(i, std::min(kRowsTogether, end - i));
      }
    });
  }

 private:
  int64_t depth(int64_t k) const { return std::min(kDepth, op_.K - k); }
  float* packed(int64_t k) const { return packed_ + k * padded(op_.R); }
  void pack(int64_t k) const { pack_panels(packed(k), q_ + k * op_.R, op_.R, 1, depth(k), op_.R); }

  void project(int64_t first, int64_t rows) const {
    alignas(64) float sums[kRowsTogether * kMostColumns];
    const int64_t width = padded(op_.R);
    for (int64_t k = 0; k < op_.K; k += kDepth) {
      for (int64_t i = first; i < first + rows; ++i) code(i * op_.K + k, depth(k));
      tile_gemm(sums, width, x_ + first * op_.K + k, op_.K, 1, packed(k), rows, op_.R, depth(k),
                k > 0);
    }
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(sums + i * width, op_.R, p_ + (first + i) * op_.R);
    }
  }

  void code(int64_t first, int64_t n) const {
    for_lanes(first, first + n, [&](int64_t i, auto get, auto put) {
      put(x_ + i, multiply_add(get(g_ + i), factor_, get(x_ + i)));
    });
  }

  const PowerProject& op_;
  const float *g_, *q_;
  float *p_, *x_;
  const Vec factor_;
  float* packed_;  // q, in blocks of kDepth rows
};

}  // namespace

int64_t scratch(const PowerProject& op) { return packed_size(op.K, op.R) * kFloat; }

void run(const PowerProject& op, const Call& call) {
  check_columns(op.R);
  const Gate gate(call.read(1));
  if (gate.is_open) {
    Projection(op, call, gate.factor).run();
  } else {
    std::fill_n(call.write(0), op.N * op.R, kNotANumber);
  }
}

// ---- c = p qᵀ, or added to c --------------------------------------------------------------------

namespace {

// A product with an inner size of R, over c's rows.
class Outer {
 public:
  // packed: as many floats as packed_size(R, K).
  Outer(float* c, const float* p, int64_t N, int64_t K, int64_t R, float* packed)
      : c_(c), p_(p), N_(N), K_(K), R_(R), packed_(packed) {}

  // q (K, R), all of it times `factor`.
  void pack(const float* q, float factor) const {
    const Vec by = splat(factor);
    parallel_range(blocks_of(K_, kPanel), 1, kPanel * R_, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t first = panel * kPanel, columns = std::min(kPanel, K_ - first);
        float* to = packed_ + first * R_;
        pack_panels(to, q + first * R_, 1, R_, R_, columns);
        for_lanes(0, packed_size(R_, columns),
                  [&](int64_t i, auto get, auto put) { put(to + i, get(to + i) * by); });
      }
    });
  }

  void run(bool accumulate) const {
    // c's rows end where they end: a panel that would go on is multiplied beside them.
    const int64_t whole = K_ % kLanes == 0 ? K_ : K_ / kPanel * kPanel;
    const int64_t most = std::max(kPanel, kPackedFloats / R_ / kPanel * kPanel);
    parallel_range(N_, kTileRows, K_, [&](int64_t begin, int64_t end) {
      for (int64_t j = 0; j < whole; j += most) {
        for (int64_t i = begin; i < end; i += kOuterRows) {
          tile_gemm(c_ + i * K_ + j, K_, p_ + i * R_, R_, 1, packed_ + j * R_,
                    std::min(kOuterRows, end - i), std::min(most, whole - j), R_, accumulate);
        }
      }
      for (int64_t i = begin; i < end && whole < K_; i += kOuterRows) {
        edge(i, std::min(kOuterRows, end - i), whole, accumulate);
      }
    });
  }

 private:
  static constexpr int64_t kPackedFloats = 65536;  // that stay in the second-level cache
  static constexpr int64_t kOuterRows = 2 * kTileRows;

  void edge(int64_t first, int64_t rows, int64_t column, bool accumulate) const {
    alignas(64) float tile[kOuterRows * kPanel] = {};
    const int64_t columns = K_ - column;
    for (int64_t i = 0; i < rows && accumulate; ++i) {
      std::copy_n(c_ + (first + i) * K_ + column, columns, tile + i * kPanel);
    }
    tile_gemm(tile, kPanel, p_ + first * R_, R_, 1, packed_ + column * R_, rows, columns, R_,
              accumulate);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(tile + i * kPanel, columns, c_ + (first + i) * K_ + column);
    }
  }

  float* c_;
  const float* p_;
  const int64_t N_, K_, R_;
  float* packed_;
};

}  // namespace

// ---- q = xᵀ p -----------------------------------------------------------------------------------

namespace {

// Columns of x that a thread multiplies at a time, and as deep as they are packed.
constexpr int64_t kColumnsTogether = 512, kRowsDeep = 64, kColumnUnit = 64;
static_assert(kColumnUnit % kPanel == 0 && kColumnsTogether % kColumnUnit == 0);

// Of each thread: columns of x, and of qᵀ.
int64_t back_floats(const PowerBack& op) { return (kRowsDeep + op.R) * kColumnsTogether; }

class BackProjection {
 public:
  BackProjection(const PowerBack& op, const Call& call, float* scratch)
      : op_(op), x_(call.update(0)), p_(call.read(1)), q_(call.write(0)), scratch_(scratch) {}

  void run() const {
    const int64_t units = blocks_of(op_.K, kColumnUnit), parts = team_threads();
    parallel_range(parts, 1, op_.N * op_.K / parts, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t last = std::min(op_.K, units * (part + 1) / parts * kColumnUnit);
        for (int64_t j = units * part / parts * kColumnUnit; j < last; j += kColumnsTogether) {
          multiply(j, std::min(kColumnsTogether, last - j), scratch_ + part * back_floats(op_));
        }
      }
    });
  }

 private:
  void multiply(int64_t first, int64_t columns, float* packed) const {
    float* sums = packed + kRowsDeep * kColumnsTogether;
    for (int64_t i = 0; i < op_.N; i += kRowsDeep) {
      const int64_t depth = std::min(kRowsDeep, op_.N - i);
      const float* x = x_ + i * op_.K + first;
      pack_panels(packed, x, op_.K, 1, depth, columns);
      tile_gemm(sums, kColumnsTogether, p_ + i * op_.R, 1, op_.R, packed, op_.R, columns, depth,
                i > 0);
    }
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t r = 0; r < op_.R; ++r) {
        q_[(first + j) * op_.R + r] = sums[r * kColumnsTogether + j];
      }
    }
  }

  const PowerBack& op_;
  const float *x_, *p_;
  float *q_, *scratch_;
};

}  // namespace

namespace {

// Of an orthonormal matrix: a column is finite in all its rows, or in none.
bool is_finite(const float* row, int64_t R) {
  return std::all_of(row, row + R, [](float x) { return std::isfinite(x); });
}

}  // namespace

int64_t scratch(const PowerBack& op) {
  return (packed_size(op.R, op.K) + team_threads() * back_floats(op)) * kFloat;
}

void run(const PowerBack& op, const Call& call) {
  if (!Gate(call.read(0)).is_open || !is_finite(call.read(1), op.R)) {
    std::fill_n(call.write(0), op.K * op.R, kNotANumber);
    return;
  }
  auto* packed = reinterpret_cast<float*>(call.scratch.data());
  BackProjection(op, call, packed + packed_size(op.R, op.K)).run();
  const Outer outer(call.update(0), call.read(1), op.N, op.K, op.R, packed);
  outer.pack(call.write(0), -1.0f);
  outer.run(true);
}

// ---- the sum ------------------------------------------------------------------------------------

int64_t scratch(const PowerSum& op) { return packed_size(op.R, op.K) * kFloat; }

void run(const PowerSum& op, const Call& call) {
  check_columns(op.R);
  const Outer outer(call.write(0), call.read(0), op.N, op.K, op.R,
                    reinterpret_cast<float*>(call.scratch.data()));
  outer.pack(call.read(1), call.scalars->loss_scale);
  outer.run(false);
}

// Row by row.
void run(const PowerKeep& op, const Call& call) {
  if (!Gate(call.read(0)).is_open) return;
  const float* q = call.read(1);
  float* warm = call.update(0);
  bool has_some[kMostColumns] = {}, has_others[kMostColumns] = {};
  for (int64_t k = 0; k < op.K; ++k) {
    for (int64_t r = 0; r < op.R; ++r) {
      has_some[r] |= q[k * op.R + r] != 0;
      has_others[r] |= !std::isfinite(q[k * op.R + r]);
    }
  }
  for (int64_t k = 0; k < op.K; ++k) {
    for (int64_t r = 0; r < op.R; ++r) {
      if (has_some[r] && !has_others[r]) warm[k * op.R + r] = q[k * op.R + r];
    }
  }
}

}  // namespace ebb::cpu
