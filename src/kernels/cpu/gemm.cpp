#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "kernels/cpu/pages.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

// A thread packs a block of b that stays in its second-level cache, and then, for block after block
// of a, multiplies: a tile of rows stays in the first-level cache while the panels of b pass by.
struct Most {
  int64_t depth, columns;
};
#if defined(__AVX512F__)
constexpr int kRows = 8, kVecs = 3;  // 24 sums in the 32 registers
constexpr Most kInPlace = {768, 288}, kPacked = {512, 384};
#else
constexpr int kRows = 6, kVecs = 2;  // 12 sums in the 16 registers
constexpr Most kInPlace = {256, 384}, kPacked = {256, 384};
#endif
constexpr int64_t kColumns = kVecs * kLanes;
constexpr int64_t kMostRows = 96;
constexpr int64_t kLineFloats = 16;

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The size of equal blocks that are whole units and at most `most`.
int64_t block_size(int64_t n, int64_t most, int64_t unit) {
  return round_up(divided_up(n, divided_up(n, most)), unit);
}

// Rows that lie in memory as rows are read where they are: eight of them pass through the caches as
// well as a packed tile does.
bool packs_a(const Gemm& product) { return product.a.col != 1; }
Most most(const Gemm& product) { return packs_a(product) ? kPacked : kInPlace; }

// From one packed tile of a to the next: not a multiple of a page, for tiles that begin in the same
// set of the first-level cache would push each other out of it while they are written.
int64_t tile_floats(int64_t depth) { return depth * kRows + kLineFloats; }

// c is cut into a grid of rectangles, one for each thread.
struct Grid {
  int64_t rows = 1, columns = 1;
  int64_t size() const { return rows * columns; }
  // Of the largest rectangle.
  int64_t height(int64_t M) const { return divided_up(divided_up(M, kRows), rows) * kRows; }
  int64_t width(int64_t N) const { return divided_up(divided_up(N, kColumns), columns) * kColumns; }
};

Grid grid_of(const Gemm& p) {
  // Packing an element takes as long as so many products, and so does reading one where it lies.
  constexpr int64_t kPacking = 30, kReading = 10;
  const int64_t threads = omp_get_max_threads();
  Grid best;
  int64_t least = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const Grid grid{rows, threads / rows};
    const int64_t height = grid.height(p.M);
    const int64_t width = grid.width(p.N);
    const int64_t time =
        height * width + kPacking * width + (packs_a(p) ? kPacking : kReading) * height;
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
  int64_t depth, columns, rows, b_floats, bytes;
  Blocks(const Grid& grid, const Gemm& p)
      : depth(block_size(p.K, most(p).depth, kLanes)),
        columns(block_size(grid.width(p.N), most(p).columns, kColumns)),
        rows(block_size(grid.height(p.M), kMostRows, kRows)),
        b_floats(depth * columns),
        bytes(whole_lines((b_floats + (packs_a(p) ? rows / kRows * tile_floats(depth) : 0)) * 4)) {}
};

class Rectangle {
 public:
  Rectangle(float* c, const Gemm& product, const Blocks& blocks, float* scratch)
      : c_(c),
        p_(product),
        blocks_(blocks),
        packed_b_(scratch),
        packed_a_(scratch + blocks.b_floats) {}

  void run(Range rows, Range columns) const {
    for (int64_t j = columns.begin; j < columns.end; j += blocks_.columns) {
      const Range block_columns{j, std::min(columns.end, j + blocks_.columns)};
      for (int64_t k = 0; k < p_.K; k += blocks_.depth) {
        const Range depth{k, std::min(p_.K, k + blocks_.depth)};
        pack_b(depth, block_columns);
        for (int64_t i = rows.begin; i < rows.end; i += blocks_.rows) {
          const Range block_rows{i, std::min(rows.end, i + blocks_.rows)};
          if (packs_a(p_)) pack_a(block_rows, depth);
          if (p_.sums != nullptr && j == 0) sum_a(block_rows, depth);
          multiply(block_rows, block_columns, depth);
          if (p_.finish && depth.end == p_.K) finish(block_rows, block_columns);
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

  // Tiles of kRows, each (depth, kRows), read as they lie in memory: short pieces far apart, which
  // no hardware foresees.
  void pack_a(Range rows, Range depth) const {
    constexpr int64_t kAhead = 16;
    const int64_t tile = tile_floats(depth.size());
    const float* in = p_.a.at(rows.begin, depth.begin).data;
    for (int64_t k = 0; k < depth.size(); ++k, in += p_.a.col) {
      for (int64_t i = 0; i < rows.size(); i += kLineFloats) {
        __builtin_prefetch(in + kAhead * p_.a.col + i);
      }
      float* out = packed_a_ + k * kRows;
      int64_t i = 0;
      for (; i + kRows <= rows.size(); i += kRows, out += tile) std::copy_n(in + i, kRows, out);
      std::copy_n(in + i, rows.size() - i, out);
    }
  }

  // As the product does: each sum is one chain in the order of k. The rows were read just now.
  void sum_a(Range rows, Range depth) const {
    const bool begins = depth.begin == 0 && !p_.accumulate;
    const float* in = p_.a.at(rows.begin, depth.begin).data;
    for_lanes(0, rows.size(), [&](int64_t i, auto get, auto put) {
      float* out = p_.sums + rows.begin + i;
      Vec sum = begins ? Vec{} : get(out);
      for (int64_t k = 0; k < depth.size(); ++k) sum += get(in + k * p_.a.col + i);
      put(out, sum);
    });
  }

  Strided tile_of_a(int64_t i, Range rows, Range depth) const {
    if (!packs_a(p_)) return p_.a.at(i, depth.begin);
    return {packed_a_ + (i - rows.begin) / kRows * tile_floats(depth.size()), 1, kRows};
  }

  void multiply(Range rows, Range columns, Range depth) const {
    const bool begins = depth.begin == 0 && !p_.accumulate;
    for (int64_t i = rows.begin; i < rows.end; i += kRows) {
      const Strided a = tile_of_a(i, rows, depth);
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

  void finish(Range rows, Range columns) const {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      p_.finish(i * p_.N + columns.begin, columns.size());
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

int64_t gemm_scratch_bytes(const Gemm& product) {
  const Grid grid = grid_of(product);
  return grid.size() * Blocks(grid, product).bytes;
}

void gemm(float* c, const Gemm& product, std::byte* scratch) {
  const Grid grid = grid_of(product);
  const Blocks blocks(grid, product);
  parallel_tasks(grid.size(), [&](int64_t task, int64_t) {
    auto* own = reinterpret_cast<float*>(scratch + task * blocks.bytes);
    Rectangle(c, product, blocks, own)
        .run(part(product.M, kRows, task / grid.columns, grid.rows),
             part(product.N, kColumns, task % grid.columns, grid.columns));
  });
}

}  // namespace ebb::cpu
