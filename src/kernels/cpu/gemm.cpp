#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "base/threads.h"
#include "kernels/cpu/pages.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

// A thread packs a block of b that stays in its second-level cache, and then, for block after block
// of a, multiplies: a tile of rows stays in the first-level cache while the panels of b pass by, or
// a panel while the tiles of a block of rows do.
struct Most {
  int64_t depth, columns;
};
#if defined(__AVX512F__)
constexpr int kRows = 8, kVecs = 3;  // 24 sums in the 32 registers
constexpr Most kInPlace = {768, 288}, kPacked = {512, 384}, kPairs = {768, 384};
constexpr int64_t kMostRows = 96;
constexpr bool kPanelStays = false;
#else
constexpr int kRows = 6, kVecs = 2;  // 12 sums in the 16 registers
constexpr Most kInPlace = {512, 192}, kPacked = {256, 384}, kPairs = {512, 384};
constexpr int64_t kMostRows = 48;
constexpr bool kPanelStays = true;
#endif
constexpr int64_t kColumns = kVecs * kLanes;
constexpr int64_t kMostHeld = 1152;
constexpr int64_t kLineUnits = 16, kLineBytes = 64;

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The size of equal blocks that are whole units and at most `most`.
int64_t block_size(int64_t n, int64_t most, int64_t unit) {
  return round_up(divided_up(n, divided_up(n, most)), unit);
}

// Rows of fp32 that lie in memory as rows are read where they are: eight of them pass through the
// caches as well as a packed tile does.
bool packs_a(const Gemm& p) { return p.a.col != 1 || p.a.type != DType::f32; }
// Both operands are bf16, and the machine multiplies them as they are.
bool in_pairs(const Gemm& p) {
  return kMultipliesBf16 && p.a.type == DType::bf16 && p.b.type == DType::bf16;
}
int64_t unit_depth(const Gemm& p) { return in_pairs(p) ? kUnitDepth<Bf16Pair> : 1; }
// Sums that are not complete stand in c, or beside it where there is no c that is all of them in
// fp32.
bool sums_in_c(const Gemm& p) { return p.c == DType::f32 && !p.c_mask && !p.passed_on; }
Most most(const Gemm& p) { return in_pairs(p) ? kPairs : packs_a(p) ? kPacked : kInPlace; }

// From one packed tile of a to the next, and from one packed row to the next, in units: not a
// multiple of a page, for those that begin in the same set of the first-level cache would push each
// other out of it.
int64_t tile_size(int64_t units) { return units * kRows + kLineUnits; }
int64_t row_size(int64_t units) { return units + kLineUnits; }

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
  const int64_t threads = team_threads();
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
  int64_t depth, columns, rows;
  int64_t held;  // rows whose sums stand beside c at a time; all of them where they stand in c
  int64_t b_units, a_units, bytes;  // packed; a unit is 4 bytes
  Blocks(const Grid& grid, const Gemm& p)
      : depth(block_size(p.K, most(p).depth, kLanes)),
        columns(block_size(grid.width(p.N), most(p).columns, kColumns)),
        rows(block_size(grid.height(p.M), kMostRows, kRows)),
        held(sums_in_c(p)   ? std::max<int64_t>(1, grid.height(p.M))
             : depth >= p.K ? rows
                            : std::min(kMostHeld, grid.height(p.M))),
        b_units(divided_up(depth, unit_depth(p)) * columns),
        a_units(packs_a(p) ? rows * row_size(divided_up(depth, unit_depth(p))) : 0),
        bytes(whole_lines((b_units + a_units + (sums_in_c(p) ? 0 : held * columns)) * 4)) {}
};

// Where the sums of some rows and columns of c stand.
struct Sums {
  float* data;
  int64_t row, first_row, first_column;
  float* at(int64_t i, int64_t j) const {
    return data + (i - first_row) * row + (j - first_column);
  }
};

// Unit: float, or Bf16Pair where the product is in pairs.
template <typename Unit>
class Rectangle {
 public:
  Rectangle(void* c, const Gemm& product, const Blocks& blocks, std::byte* scratch)
      : c_(c),
        p_(product),
        blocks_(blocks),
        packed_b_(reinterpret_cast<Unit*>(scratch)),
        packed_a_(packed_b_ + blocks.b_units),
        held_(reinterpret_cast<float*>(packed_a_ + blocks.a_units)) {}

  void run(Range rows, Range columns) const {
    for (int64_t j = columns.begin; j < columns.end; j += blocks_.columns) {
      const Range block_columns{j, std::min(columns.end, j + blocks_.columns)};
      for (int64_t i = rows.begin; i < rows.end; i += blocks_.held) {
        const Range held{i, std::min(rows.end, i + blocks_.held)};
        const Sums sums = begin(held, block_columns);
        for (int64_t k = 0; k < p_.K; k += blocks_.depth) {
          const Range depth{k, std::min(p_.K, k + blocks_.depth)};
          // One block of b that is as deep as all of it stays packed.
          if (i == rows.begin || blocks_.depth < p_.K) pack_b(depth, block_columns);
          run(held, block_columns, depth, sums);
        }
      }
    }
  }

 private:
  static constexpr bool kPaired = std::is_same_v<Unit, Bf16Pair>;
  static int64_t units(Range depth) { return divided_up(depth.size(), kUnitDepth<Unit>); }

  // Calls body with a value of the type that is packed.
  template <typename Body>
  static void with_element(DType type, Body body) {
    if constexpr (kPaired) {
      body(Bf16{});
    } else {
      with_storage(type, body);
    }
  }

  void run(Range rows, Range columns, Range depth, const Sums& sums) const {
    for (int64_t i = rows.begin; i < rows.end; i += blocks_.rows) {
      const Range block{i, std::min(rows.end, i + blocks_.rows)};
      if (packs_a(p_)) pack_a(block, depth);
      if (p_.sums != nullptr && columns.begin == 0) sum_a(block, depth);
      multiply(block, columns, depth, sums);
    }
  }

  Sums begin(Range rows, Range columns) const {
    if (sums_in_c(p_)) return {static_cast<float*>(c_), p_.N, 0, 0};
    const Sums sums{held_, blocks_.columns, rows.begin, columns.begin};
    if (!p_.accumulate) return sums;
    with_storage(p_.c, [&](auto element) {
      const auto* c = static_cast<const decltype(element)*>(c_);
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        float* to = sums.at(i, columns.begin);
        p_.c_mask ? expand(to, c, p_.c_mask, i, columns.begin, columns.size())
                  : widen(to, c + i * p_.N + columns.begin, columns.size());
      }
    });
    return sums;
  }

  // Panels of kColumns, the last as narrow as it needs to be.
  void pack_b(Range depth, Range columns) const {
    with_element(p_.b.type, [&](auto element) {
      using S = decltype(element);
      for (int64_t j = columns.begin; j < columns.end; j += kColumns) {
        const int64_t real = std::min(kColumns, columns.end - j);
        Unit* packed = packed_b_ + (j - columns.begin) * units(depth);
        if (p_.b.mask) {
          const MaskedOf<S> b{static_cast<const S*>(p_.b.data), p_.b.mask, p_.b.transposed};
          pack_masked<kColumns>(packed, b, depth.begin, depth.size(), j, real);
        } else {
          pack_panel(packed, p_.b.at<S>(depth.begin, j), depth.size(), real,
                     round_up(real, kLanes));
        }
      }
    });
  }

  void pack_a(Range rows, Range depth) const {
    with_element(p_.a.type, [&](auto element) {
      const auto a = p_.a.at<decltype(element)>(rows.begin, depth.begin);
      p_.a.col == 1 ? pack_rows(a, rows.size(), depth) : pack_tiles(a, rows.size(), depth);
    });
  }

  template <typename S>
  void pack_rows(const StridedOf<S>& a, int64_t rows, Range depth) const {
    for (int64_t i = 0; i < rows; ++i) {
      pack_run(packed_a_ + i * row_size(units(depth)), a.data + i * a.row, depth.size());
    }
  }

  // Tiles of kRows, each (units of depth, kRows), read as they lie in memory: short pieces far
  // apart, which no hardware foresees.
  template <typename S>
  void pack_tiles(const StridedOf<S>& a, int64_t rows, Range depth) const {
    constexpr int64_t kAhead = 16, kStep = kUnitDepth<Unit>;
    constexpr auto kLine = static_cast<int64_t>(64 / sizeof(S));
    const int64_t tile = tile_size(units(depth));
    const S* in = a.data;
    for (int64_t k = 0; k < depth.size(); k += kStep, in += kStep * a.col) {
      for (int64_t ahead = kAhead; ahead < kAhead + kStep; ++ahead) {
        for (int64_t i = 0; i < rows; i += kLine) __builtin_prefetch(in + ahead * a.col + i);
      }
      Unit line[kMostRows];  // read by whole vectors first
      pack_line(line, in, a.col, k + 1 < depth.size(), rows);
      Unit* out = packed_a_ + k / kStep * kRows;
      int64_t i = 0;
      for (; i + kRows <= rows; i += kRows, out += tile) std::copy_n(line + i, kRows, out);
      std::copy_n(line + i, rows - i, out);
    }
  }

  // As the product does: each sum is one chain in the order of k. The rows were read just now.
  void sum_a(Range rows, Range depth) const {
    const bool begins = depth.begin == 0 && !p_.accumulate;
    with_storage(p_.a.type, [&](auto element) {
      const auto a = p_.a.at<decltype(element)>(rows.begin, depth.begin);
      for_lanes(0, rows.size(), [&](int64_t i, auto get, auto put) {
        float* out = p_.sums + rows.begin + i;
        Vec sum = begins ? Vec{} : get(out);
        for (int64_t k = 0; k < depth.size(); ++k) sum += get(a.data + k * a.col + i);
        put(out, sum);
      });
    });
  }

  // While a tile is multiplied: so that it is in the caches when the tile is complete.
  void fetch_beside(Range rows, Range columns) const {
    const int64_t bytes = dtype_bytes(p_.c);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const char* row = static_cast<const char*>(p_.beside) + i * p_.N * bytes;
      for (int64_t at = columns.begin * bytes; at < columns.end * bytes; at += kLineBytes) {
        __builtin_prefetch(row + at);
      }
    }
  }

  // The sums below a tile, while it is multiplied: they were last used a block of k ago.
  static void fetch_next(int64_t i, int64_t j, Range rows, const Sums& sums) {
    for (int64_t next = i + kRows; next < std::min(i + 2 * kRows, rows.end); ++next) {
      __builtin_prefetch(sums.at(next, j), 1);
    }
  }

  StridedOf<Unit> tile_of_a(int64_t i, Range rows, Range depth) const {
    if constexpr (!kPaired) {
      if (!packs_a(p_)) return p_.a.at<float>(i, depth.begin);
    }
    const int64_t row = row_size(units(depth));
    if (p_.a.col == 1) return {packed_a_ + (i - rows.begin) * row, row, 1};
    return {packed_a_ + (i - rows.begin) / kRows * tile_size(units(depth)), 1, kRows};
  }

  void multiply(Range rows, Range columns, Range depth, const Sums& sums) const {
    const bool begins = depth.begin == 0 && !p_.accumulate;
    const bool ends = depth.end == p_.K;
    const auto tile = [&](int64_t i, int64_t j) {
      const StridedOf<Unit> a = tile_of_a(i, rows, depth);
      const Unit* b = packed_b_ + (j - columns.begin) * units(depth);
      const int64_t height = std::min<int64_t>(kRows, rows.end - i);
      const int64_t width = std::min(kColumns, columns.end - j);
      if (ends && p_.beside != nullptr) fetch_beside({i, i + height}, {j, j + width});
      const auto whole = [&](auto start) {
        micro_gemm<kRows, kVecs>(sums.at(i, j), sums.row, a, b, units(depth), start);
      };
      if (height < kRows || width < kColumns) {
        multiply_edge({i, i + height}, {j, j + width}, a, b, units(depth), begins, sums);
      } else if (!begins) {
        whole(FromC());
      } else if (p_.bias != nullptr) {
        whole(FromRow{p_.bias + j});
      } else {
        whole(FromZero());
      }
    };
    if constexpr (kPanelStays) {
      for (int64_t j = columns.begin; j < columns.end; j += kColumns) {
        for (int64_t i = rows.begin; i < rows.end; i += kRows) {
          fetch_next(i, j, rows, sums);
          tile(i, j);
        }
      }
      if (ends) finish(rows, columns, sums);
    } else {
      for (int64_t i = rows.begin; i < rows.end; i += kRows) {
        for (int64_t j = columns.begin; j < columns.end; j += kColumns) tile(i, j);
        if (ends) finish({i, std::min(rows.end, i + kRows)}, columns, sums);
      }
    }
  }

  // A tile that c does not hold whole, in a tile of its own.
  void multiply_edge(Range rows, Range columns, const StridedOf<Unit>& a, const Unit* b, int64_t K,
                     bool begins, const Sums& sums) const {
    float tile[kRows * kColumns] = {};
    for (int64_t i = 0; i < rows.size(); ++i) {
      const float* row = sums.at(rows.begin + i, columns.begin);
      const float* bias = p_.bias != nullptr ? p_.bias + columns.begin : nullptr;
      const float* from = begins ? bias : row;
      if (from != nullptr) std::copy_n(from, columns.size(), tile + i * kColumns);
    }
    with_constant<kRows>(rows.size(), [&](auto height) {
      with_constant<kVecs>(divided_up(columns.size(), kLanes), [&](auto vecs) {
        micro_gemm<height, vecs>(tile, kColumns, a, b, K, FromC());
      });
    });
    for (int64_t i = 0; i < rows.size(); ++i) {
      std::copy_n(tile + i * kColumns, columns.size(), sums.at(rows.begin + i, columns.begin));
    }
  }

  void finish(Range rows, Range columns, const Sums& sums) const {
    for (int64_t i = rows.begin; p_.finish && i < rows.end; ++i) {
      p_.finish(i * p_.N + columns.begin, sums.at(i, columns.begin), columns.size());
    }
    if (sums_in_c(p_) || p_.passed_on) return;
    with_storage(p_.c, [&](auto element) {
      auto* c = static_cast<decltype(element)*>(c_);
      for (int64_t i = rows.begin; i < rows.end; ++i) {
        const float* from = sums.at(i, columns.begin);
        if (p_.c_mask) {
          compress(c, from, p_.c_mask, i, columns.begin, columns.size());
          continue;
        }
        for_lanes(0, columns.size(), [&](int64_t j, auto get, auto put) {
          put(c + i * p_.N + columns.begin + j, get(from + j));
        });
      }
    });
  }

  void* c_;
  const Gemm& p_;
  const Blocks& blocks_;
  Unit* packed_b_;
  Unit* packed_a_;
  float* held_;
};

template <typename Unit>
void run_grid(void* c, const Gemm& product, const Grid& grid, std::byte* scratch) {
  const Blocks blocks(grid, product);
  parallel_tasks(grid.size(), [&](int64_t task, int64_t) {
    Rectangle<Unit>(c, product, blocks, scratch + task * blocks.bytes)
        .run(part(product.M, kRows, task / grid.columns, grid.rows),
             part(product.N, kColumns, task % grid.columns, grid.columns));
  });
}

}  // namespace

int64_t gemm_panel() { return kColumns; }

int64_t gemm_scratch_bytes(const Gemm& product) {
  const Grid grid = grid_of(product);
  return grid.size() * Blocks(grid, product).bytes;
}

void gemm(void* c, const Gemm& product, std::byte* scratch) {
  const Grid grid = grid_of(product);
  (in_pairs(product) ? run_grid<Bf16Pair> : run_grid<float>)(c, product, grid, scratch);
}

}  // namespace ebb::cpu
