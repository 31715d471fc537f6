// Matrices of which only some elements are there: from what is left to whole rows and back.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cpu/micro_gemm.h"

namespace ebb::cpu {

// Which are there, as the ops of linear layers take it: program/ops.h.
class Mask {
 public:
  Mask() = default;
  Mask(const void* rows, int64_t row_bytes, int64_t left)
      : rows_(static_cast<const char*>(rows)), row_bytes_(row_bytes), left_(left) {}
  explicit operator bool() const { return left_ > 0; }

  int64_t left() const { return left_; }
  // Of those that are there, how many come before this element.
  int64_t before(int64_t row, int64_t column) const {
    int64_t count = word(row, 0);
    for (int64_t i = 0; i < column / 64; ++i) count += std::popcount(word(row, 1 + i));
    const int64_t rest = column % 64;
    if (rest == 0) return count;
    return count + std::popcount(word(row, 1 + column / 64) << (64 - rest));
  }
  // A bit for each of kLanes columns from `column` on, a multiple of kLanes.
  uint32_t lanes(int64_t row, int64_t column) const {
    LaneBits bits;
    std::memcpy(&bits, rows_ + row * row_bytes_ + 8 + column / 8, sizeof bits);
    return bits;
  }

 private:
  using LaneBits = std::conditional_t<kLanes == 16, uint16_t, uint8_t>;

  uint64_t word(int64_t row, int64_t i) const {
    uint64_t bits;
    std::memcpy(&bits, rows_ + row * row_bytes_ + 8 * i, sizeof bits);
    return bits;
  }

  const char* rows_ = nullptr;
  int64_t row_bytes_ = 0, left_ = 0;
};

#if defined(__AVX512F__)

// Lanes whose bit is set take the first lanes of v in order; the others are 0.
inline Vec spread(Vec v, uint32_t lanes) {
  return _mm512_maskz_expand_ps(static_cast<__mmask16>(lanes), v);
}
// The lanes whose bit is set, moved together at the front.
inline Vec gathered(Vec v, uint32_t lanes) {
  return _mm512_maskz_compress_ps(static_cast<__mmask16>(lanes), v);
}

#else

// For every set of lanes: where each set lane comes from, and where each that is moved stands.
struct LaneOrders {
  std::array<std::array<uint8_t, 8>, 256> spread = {}, gathered = {};
  constexpr LaneOrders() {
    for (int set = 0; set < 256; ++set) {
      uint8_t rank = 0;
      for (uint8_t lane = 0; lane < 8; ++lane) {
        if ((set >> lane & 1) == 0) continue;
        gathered[set][rank] = lane;
        spread[set][lane] = rank++;
      }
    }
  }
};
inline constexpr LaneOrders kLaneOrders;

inline __m256i lane_order(const std::array<uint8_t, 8>& order) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(order.data())));
}

inline Vec spread(Vec v, uint32_t lanes) {
  const VecI bit = {1, 2, 4, 8, 16, 32, 64, 128};
  const VecI is_set = (bit & static_cast<int32_t>(lanes)) != 0;
  const Vec moved = _mm256_permutevar8x32_ps(v, lane_order(kLaneOrders.spread[lanes]));
  return as_bits<Vec>(as_bits<VecI>(moved) & is_set);
}
inline Vec gathered(Vec v, uint32_t lanes) {
  return _mm256_permutevar8x32_ps(v, lane_order(kLaneOrders.gathered[lanes]));
}

#endif

// Elements [column, column + n) of a row as whole vectors, those that are not there as 0. `left` is
// all that is left of the matrix; column is a multiple of kLanes, and so is n but at a row's end.
template <typename To, typename S>
inline void expand(To* to, const S* left, const Mask& mask, int64_t row, int64_t column,
                   int64_t n) {
  int64_t at = mask.before(row, column);
  for (int64_t i = 0; i < n; i += kLanes) {
    const uint32_t lanes = mask.lanes(row, column + i);
    const int64_t behind = mask.left() - at;
    const Vec next = behind >= kLanes ? load(left + at) : load_part(left + at, behind);
    store(to + i, spread(next, lanes));
    at += std::popcount(lanes);
  }
}

// The other way round: of n values those that are there.
template <typename S>
inline void compress(S* left, const float* values, const Mask& mask, int64_t row, int64_t column,
                     int64_t n) {
  int64_t at = mask.before(row, column);
  for_lanes(0, n, [&](int64_t i, auto get, auto) {
    const uint32_t lanes = mask.lanes(row, column + i);
    const int count = std::popcount(lanes);
    const Vec front = gathered(get(values + i), lanes);
    // Elements behind these are another thread's.
    count == kLanes ? store(left + at, front) : store_part(left + at, front, count);
    at += count;
  });
}

// A masked matrix as a factor; its rows are the columns of what it stands for if `transposed`.
template <typename S>
struct MaskedOf {
  const S* left;
  Mask mask;
  bool transposed;
};

// As pack_panel does of `columns` <= kColumns columns from j on, K rows from k on, both multiples
// of kLanes: a strip at a time is made whole, in the first-level cache.
template <int64_t kColumns, typename Unit, typename S>
inline void pack_masked(Unit* packed, const MaskedOf<S>& b, int64_t k, int64_t K, int64_t j,
                        int64_t columns) {
  constexpr int64_t kStrip = 64;
  alignas(64) S strip[kColumns * kStrip];
  const int64_t width = round_up(columns, kLanes);
  for (int64_t done = 0; done < K; done += kStrip) {
    const int64_t n = std::min(kStrip, K - done);
    for (int64_t i = 0; i < (b.transposed ? columns : n); ++i) {
      b.transposed ? expand(strip + i * kStrip, b.left, b.mask, j + i, k + done, n)
                   : expand(strip + i * kColumns, b.left, b.mask, k + done + i, j, columns);
    }
    const StridedOf<S> whole =
        b.transposed ? StridedOf<S>{strip, 1, kStrip} : StridedOf<S>{strip, kColumns, 1};
    pack_panel(packed + done / kUnitDepth<Unit> * width, whole, n, columns, width);
  }
}

}  // namespace ebb::cpu
