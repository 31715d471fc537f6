// The vector layer: its stated errors, its fixed order of sums, its transposed blocks.
#include "kernels/cpu/vec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/cpu/random_bits.h"
#include "kernels/cpu/tile_gemm.h"

namespace ebb::cpu {
namespace {

Vec ramp(float first, float step) {
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = first + step * static_cast<float>(i);
  return v;
}

// The largest distance from the true value over [low, high], in units of the last place of it.
template <typename Fast, typename True>
double worst_ulp(float low, float high, Fast fast, True exact) {
  constexpr int kPoints = 100'000;
  double worst = 0;
  for (int k = 0; k < kPoints; ++k) {
    const float x = low + (high - low) * static_cast<float>(k) / kPoints;
    const double wanted = exact(static_cast<double>(x));
    const float near = static_cast<float>(wanted);
    const double unit = std::nextafter(std::fabs(near), INFINITY) - std::fabs(near);
    worst = std::max(worst, std::fabs(fast(splat(x))[kLanes - 1] - wanted) / unit);
  }
  return worst;
}

TEST(Vectors, FunctionsAreWithinTheirStatedErrors) {
  const auto fast_exp = [](Vec v) { return exp(v); };
  const auto true_exp = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_ulp(-86.6f, 88.3f, fast_exp, true_exp), 2);
  EXPECT_LE(worst_ulp(-1, 1, fast_exp, true_exp), 2);
  const auto power = [](Vec v) { return exp2(v); };
  EXPECT_LE(worst_ulp(-125, 127, power, [](double x) { return std::exp2(x); }), 2);
  const auto inverse = [](Vec v) { return reciprocal(v); };
  EXPECT_LE(worst_ulp(1e-30f, 1, inverse, [](double x) { return 1 / x; }), 2);
  EXPECT_LE(worst_ulp(1, 8e37f, inverse, [](double x) { return 1 / x; }), 2);
  const auto gate = [](Vec v) { return sigmoid(v); };
  EXPECT_LE(worst_ulp(-86, 86, gate, [](double x) { return 1 / (1 + std::exp(-x)); }), 4);
}

TEST(Vectors, FarValuesStayFiniteAndNanStaysNan) {
  EXPECT_NEAR(exp(splat(-1000))[0], 0, 3e-38);
  EXPECT_NEAR(exp2(splat(-1000))[0], 0, 3e-38);
  EXPECT_TRUE(std::isfinite(exp(splat(1000))[0]));
  EXPECT_NEAR(sigmoid(splat(-1000))[0], 0, 3e-38);
  EXPECT_EQ(sigmoid(splat(1000))[0], 1);
  const Vec nan = splat(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(exp(nan)[0]));
  EXPECT_TRUE(std::isnan(exp2(nan)[0]));
  EXPECT_TRUE(std::isnan(sigmoid(nan)[0]));
}

// As kernels are compiled; tests are not optimised.
template <typename T>
[[gnu::optimize("O3"), gnu::noinline]] T product_less(T a, T b, T c) {
  return a * b - c;
}

TEST(Vectors, TheCompilerFusesNothingThatDoesNotSaySo) {
  const float a = 1 + 0x1p-12f;
  const float square = a * a;  // its last digit is lost
  EXPECT_EQ(product_less(a, a, square), 0);
  EXPECT_EQ(std::fma(a, a, -square), 0x1p-24f);
  const Vec v = splat(a);
  EXPECT_EQ(product_less(v, v, splat(square))[kLanes - 1], 0);
  EXPECT_EQ(multiply_less(v, v, splat(square))[kLanes - 1], 0x1p-24f);
  EXPECT_EQ(multiply_add(v, v, splat(-square))[kLanes - 1], 0x1p-24f);
  EXPECT_EQ(less_product(splat(square), v, v)[kLanes - 1], -0x1p-24f);
}

TEST(Vectors, SplatKeepsTheSignOfZero) { EXPECT_TRUE(std::signbit(splat(-0.0f)[kLanes - 1])); }

TEST(Vectors, LanesAreAddedByHalves) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = 1.0f / static_cast<float>(3 * i + 1);
  const float found = sum(load(lanes));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  EXPECT_EQ(found, lanes[0]);
  EXPECT_EQ(max_lane(ramp(3, -1)), 3);
  EXPECT_EQ(max_lane(ramp(3, 1)), 2 + kLanes);
}

TEST(Vectors, ABlockIsTransposed) {
  Vec rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = ramp(static_cast<float>(100 * i), 1);
  transpose(rows);
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) EXPECT_EQ(rows[i][j], static_cast<float>(100 * j + i));
  }
}

TEST(Vectors, PanelsHoldEveryElementOnceInBothOrientations) {
  for (const int64_t K : {1, 7, 16, 33, 72}) {
    for (const int64_t N : {1, 15, 16, 64, 65, 130}) {
      std::vector<float> b(K * N);
      for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i + 1);
      std::vector<float> rows(packed_size(K, N), -1), columns(packed_size(K, N), -1);
      pack_panels(rows.data(), b.data(), N, 1, K, N);
      std::vector<float> turned(K * N);
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t j = 0; j < N; ++j) turned[j * K + k] = b[k * N + j];
      }
      pack_panels(columns.data(), turned.data(), 1, K, K, N);
      EXPECT_EQ(rows, columns) << K << " x " << N;
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t j = 0; j < padded(N); ++j) {
          const int64_t first = j / kPanel * kPanel;
          const int64_t width = std::min(kPanel, padded(N) - first);
          const float wanted = j < N ? b[k * N + j] : 0;
          ASSERT_EQ(rows[first * K + k * width + j - first], wanted) << k << ", " << j;
        }
      }
    }
  }
}

template <typename S>
void check_conversions() {
  // Every number of 16 bits, and fp32 of any size.
  for (uint32_t first = 0; first < 65536; first += kLanes) {
    S stored[kLanes];
    for (int i = 0; i < kLanes; ++i) stored[i].bits = static_cast<uint16_t>(first + i);
    const Vec wide = load(stored);
    for (int i = 0; i < kLanes; ++i) {
      const auto want = static_cast<float>(stored[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[i])) << stored[i].bits;
      } else {
        ASSERT_EQ(wide[i], want) << stored[i].bits;
      }
    }
  }
  std::mt19937 random(9);
  for (int trial = 0; trial < 100000; ++trial) {
    Vec wide;
    for (int i = 0; i < kLanes; ++i)
      wide[i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
    S stored[kLanes];
    store(stored, wide);
    const Vec rounded = as_stored<S>(wide);
    for (int i = 0; i < kLanes; ++i) {
      if (std::isnan(wide[i])) {
        ASSERT_TRUE(std::isnan(static_cast<float>(stored[i])));
        continue;
      }
      ASSERT_EQ(stored[i].bits, S::nearest(wide[i]).bits) << wide[i];
      ASSERT_EQ(rounded[i], static_cast<float>(stored[i]));
    }
  }
}

TEST(Vectors, SixteenBitsAreConvertedAsOneByOne) {
  check_conversions<Bf16>();
  check_conversions<F16>();
}

TEST(Vectors, RandomWordsAreThoseOfPhilox) {
  uint32_t words[kRandomWords];
  const uint64_t seed = 0x123456789abcdef0;
  random_words(words, seed, Stream::ema_rounding, 41, 7, 1000);
  for (uint32_t c = 0; c < kRandomWords / 4; ++c) {
    const auto four =
        philox(seed, static_cast<uint32_t>(Stream::ema_rounding), 41, 7, 1000 * 64 + c);
    for (int j = 0; j < 4; ++j) EXPECT_EQ(words[64 * j + c], four[j]);
  }
}

}  // namespace
}  // namespace ebb::cpu
