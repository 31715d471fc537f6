#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/cpu/pages.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

#if defined(__AVX512F__)
constexpr int kRows = 8, kVecs = 3;  // 24 sums in the 32 registers
#else
constexpr int kRows = 6, kVecs = 2;  // 12 sums in the 16 registers
#endif
constexpr int64_t kColumns = kVecs * kLanes;

// A thread packs a block of b that stays in its second-level cache, and then, for block after block
// of a, multiplies: a tile of rows stays in the first-level cache while the panels of b pass by.
constexpr int64_t kMostDepth = 256;
constexpr int64_t kMostColumns = 768;
constexpr int64_t kMostRows = 96;

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The size of equal blocks that are whole units and at most `most`.
int64_t block_size(int64_t n, int64_t most, int64_t unit) {
  return round_up(divided_up(n, divided_up(n, most)), unit);
}

// c is cut into a grid of rectangles, one for each thread.
struct Grid {
  int64_t rows = 1, columns = 1;
  int64_t size() const { return rows * columns; }
  // Of the largest rectangle.
  int64_t height(int64_t M) const { return divided_up(divided_up(M, kRows), rows) * kRows; }
  int64_t width(int64_t N) const { return divided_up(divided_up(N, kColumns), columns) * kColumns; }
};

Grid grid_of(int64_t M, int64_t N) {
  constexpr int64_t kPacking = 30;  // packing an element takes as long as so many products
  const int64_t threads = omp_get_max_threads();
  Grid best;
  int64_t least = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const Grid grid{rows, threads / rows};
    const int64_t height = grid.height(M);
    const int64_t width = grid.width(N);
    const int64_t time = height * width + kPacking * (height + width);
    if (least != 0 && time >= least) continue;
    best = grid;
    least = time;
  }
  return best;
}

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Part `index` of [0, n), cut at whole units.
Range part(int64_t n, int64_t unit, int64_t index, int64_t parts) {
  const int64_t units = divided_up(n, unit);
  return {std::min(n, units * index / parts * unit),
          std::min(n, units * (index + 1) / parts * unit)};
}

// The blocks of one thread.
struct Blocks {
  int64_t depth, columns, rows;
  Blocks(const Grid& grid, int64_t M, int64_t N, int64_t K)
      : depth(block_size(K, kMostDepth, kLanes)),
        columns(block_size(grid.width(N), kMostColumns, kColumns)),
        rows(block_size(grid.height(M), kMostRows, kRows)) {}
  int64_t b_floats() const { return depth * columns; }
  // The last vector of a packed tile is longer than the tile.
  int64_t bytes() const { return whole_lines((b_floats() + depth * rows + kLanes) * 4); }
};

class Rectangle {
 public:
  Rectangle(float* c, const Gemm& product, const Blocks& blocks, float* scratch)
      : c_(c),
        p_(product),
        blocks_(blocks),
        packed_b_(scratch),
        packed_a_(scratch + blocks.b_floats()) {}

  void run(Range rows, Range columns) const {
    for (int64_t j = columns.begin; j < columns.end; j += blocks_.columns) {
      const Range block_columns{j, std::min(columns.end, j + blocks_.columns)};
      for (int64_t k = 0; k < p_.K; k += blocks_.depth) {
        const Range depth{k, std::min(p_.K, k + blocks_.depth)};
        pack_b(depth, block_columns);
        for (int64_t i = rows.begin; i < rows.end; i += blocks_.rows) {
          const Range block_rows{i, std::min(rows.end, i + blocks_.rows)};
          pack_a(block_rows, depth);
          multiply(block_rows, block_columns, depth);
        }
      }
    }
  }

 private:
  // Panels of kColumns, the last as narrow as it needs to be.
  void pack_b(Range depth, Range columns) const {
    for (int64_t j = columns.begin; j < columns.end; j += kColumns) {
      const int64_t real = std::min(kColumns, columns.end - j);
      pack_panel(packed_b_ + (j - columns.begin) * depth.size(), p_.b.at(depth.begin, j),
                 depth.size(), real, round_up(real, kLanes));
    }
  }

  // Tiles of kRows, each (depth, kRows).
  void pack_a(Range rows, Range depth) const {
    const Strided a = p_.a.at(rows.begin, depth.begin);
    if (a.col != 1) return pack_a_columns(a, rows.size(), depth.size());
    for (int64_t i = 0; i < rows.size(); i += kRows) {
      pack_a_rows(packed_a_ + i * depth.size(), a.at(i, 0),
                  std::min<int64_t>(kRows, rows.size() - i), depth.size());
    }
  }

  // k by k, as they lie in memory.
  void pack_a_columns(const Strided& a, int64_t rows, int64_t depth) const {
    for (int64_t k = 0; k < depth; ++k) {
      const float* in = a.data + k * a.col;
      float* out = packed_a_ + k * kRows;
      int64_t i = 0;
      for (; i + kRows <= rows; i += kRows) std::copy_n(in + i, kRows, out + i * depth);
      std::copy_n(in + i, rows - i, out + i * depth);
    }
  }

  // A vector holds more than a tile's rows: what it writes too much, the next one writes over.
  static void pack_a_rows(float* packed, const Strided& a, int64_t rows, int64_t depth) {
    static_assert(kRows <= kLanes);
    for (int64_t k = 0; k < depth; k += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, depth - k);
      Vec block[kLanes] = {};
      for (int64_t i = 0; i < rows; ++i) {
        const float* in = a.data + i * a.row + k;
        block[i] = count == kLanes ? load(in) : load_part(in, count);
      }
      transpose(block);
      for (int64_t j = 0; j < count; ++j) store(packed + (k + j) * kRows, block[j]);
    }
  }

  void multiply(Range rows, Range columns, Range depth) const {
    const bool begins = depth.begin == 0 && !p_.accumulate;
    for (int64_t i = rows.begin; i < rows.end; i += kRows) {
      const Strided a{packed_a_ + (i - rows.begin) * depth.size(), 1, kRows};
      const int64_t height = std::min<int64_t>(kRows, rows.end - i);
      for (int64_t j = columns.begin; j < columns.end; j += kColumns) {
        const float* b = packed_b_ + (j - columns.begin) * depth.size();
        const int64_t width = std::min(kColumns, columns.end - j);
        if (height < kRows || width < kColumns) {
          multiply_edge({i, i + height}, {j, j + width}, a, b, depth.size(), begins);
        } else if (!begins) {
          multiply_tile(i, j, a, b, depth.size(), FromC());
        } else if (p_.bias != nullptr) {
          multiply_tile(i, j, a, b, depth.size(), FromRow{p_.bias + j});
        } else {
          multiply_tile(i, j, a, b, depth.size(), FromZero());
        }
      }
    }
  }

  template <typename Start>
  void multiply_tile(int64_t i, int64_t j, const Strided& a, const float* b, int64_t K,
                     Start start) const {
    micro_gemm<kRows, kVecs>(c_ + i * p_.N + j, p_.N, a, b, K, start);
  }

  // A tile that c does not hold whole, in a tile of its own.
  void multiply_edge(Range rows, Range columns, const Strided& a, const float* b, int64_t K,
                     bool begins) const {
    float tile[kRows * kColumns] = {};
    for (int64_t i = 0; i < rows.size(); ++i) {
      const float* from = begins ? p_.bias : c_ + (rows.begin + i) * p_.N;
      if (from != nullptr) std::copy_n(from + columns.begin, columns.size(), tile + i * kColumns);
    }
    with_constant<kRows>(rows.size(), [&](auto height) {
      with_constant<kVecs>(divided_up(columns.size(), kLanes), [&](auto vecs) {
        micro_gemm<height, vecs>(tile, kColumns, a, b, K, FromC());
      });
    });
    for (int64_t i = 0; i < rows.size(); ++i) {
      std::copy_n(tile + i * kColumns, columns.size(),
                  c_ + (rows.begin + i) * p_.N + columns.begin);
    }
  }

  float* c_;
  const Gemm& p_;
  const Blocks& blocks_;
  float* packed_b_;
  float* packed_a_;
};

}  // namespace

int64_t gemm_scratch_bytes(int64_t M, int64_t N, int64_t K) {
  const Grid grid = grid_of(M, N);
  return grid.size() * Blocks(grid, M, N, K).bytes();
}

void gemm(float* c, const Gemm& product, std::byte* scratch) {
  const Grid grid = grid_of(product.M, product.N);
  const Blocks blocks(grid, product.M, product.N, product.K);
  parallel_tasks(grid.size(), [&](int64_t task, int64_t) {
    auto* own = reinterpret_cast<float*>(scratch + task * blocks.bytes());
    Rectangle(c, product, blocks, own)
        .run(part(product.M, kRows, task / grid.columns, grid.rows),
             part(product.N, kColumns, task % grid.columns, grid.columns));
  });
}

}  // namespace ebb::cpu
