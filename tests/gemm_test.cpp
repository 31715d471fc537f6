// The matrix product of linear layers: an element's bits depend on its row, its column and the
// order of k alone.
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/threads.h"
#include "kernels/cpu/device.h"

namespace ebb::cpu {
namespace {

using Values = std::vector<float>;

Values random_values(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Values m(size);
  for (float& x : m) x = normal(random);
  return m;
}

// How a and b lie in memory: forward, gradient of the input, gradient of the weight.
enum class Role { forward, input, weight };

Gemm product(Role role, int64_t M, int64_t N, int64_t K, const Values& a, const Values& b) {
  Gemm p{M, N, K, {a.data(), DType::f32, K, 1}, {b.data(), DType::f32, N, 1}};
  if (role == Role::forward) p.b = {b.data(), DType::f32, 1, K};
  if (role == Role::weight) p.a = {a.data(), DType::f32, 1, M};
  return p;
}

Values run(const Gemm& p, Values c) {
  std::vector<std::byte> scratch(gemm_scratch_bytes(p));
  gemm(c.data(), p, scratch.data());
  return c;
}

// One chain of multiply-adds for each element, as the machine has them.
Values plainly(const Gemm& p, Values c) {
  for (int64_t i = 0; i < p.M; ++i) {
    for (int64_t j = 0; j < p.N; ++j) {
      float& sum = c[i * p.N + j];
      if (!p.accumulate) sum = p.bias != nullptr ? p.bias[j] : 0.0f;
      for (int64_t k = 0; k < p.K; ++k) {
        sum = __builtin_fmaf(*p.a.at<float>(i, k).data, *p.b.at<float>(k, j).data, sum);
      }
    }
  }
  return c;
}

const int64_t kShapes[][3] = {{1, 1, 1},    {1, 300, 40},  {5, 7, 3},      {8, 48, 16},
                              {6, 16, 8},   {9, 49, 17},   {13, 130, 257}, {97, 769, 31},
                              {200, 96, 5}, {64, 50, 513}, {193, 17, 100}};

class EveryRole : public ::testing::TestWithParam<Role> {};

TEST_P(EveryRole, IsTheChainOfMultiplyAddsBitForBit) {
  for (const auto& [M, N, K] : kShapes) {
    SCOPED_TRACE(::testing::Message() << M << " x " << N << " x " << K);
    const Values a = random_values(M * K, 1), b = random_values(K * N, 2);
    const Values c = random_values(M * N, 3), bias = random_values(N, 4);
    Gemm p = product(GetParam(), M, N, K, a, b);
    EXPECT_EQ(run(p, c), plainly(p, c));
    p.bias = bias.data();
    EXPECT_EQ(run(p, c), plainly(p, c));
    p.bias = nullptr;
    p.accumulate = true;
    EXPECT_EQ(run(p, c), plainly(p, c));
  }
}

TEST_P(EveryRole, DoesNotDependOnTheThreads) {
  const int before = team_threads();
  const int64_t M = 333, N = 250, K = 300;
  const Values a = random_values(M * K, 1), b = random_values(K * N, 2), c(M * N);
  const Gemm p = product(GetParam(), M, N, K, a, b);
  set_team_threads(1);
  const Values alone = run(p, c);
  for (const int threads : {2, 3, 4, 7}) {
    set_team_threads(threads);
    EXPECT_EQ(run(p, c), alone) << threads;
  }
  set_team_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Gemm, EveryRole,
                         ::testing::Values(Role::forward, Role::input, Role::weight));

// So micro-batches of any size add up to the same gradient of a weight.
TEST(Gemm, TakesAnInterruptedSumUpAgain) {
  const int64_t M = 70, N = 100, K = 600;
  const Values a = random_values(M * K, 1), b = random_values(K * N, 2);
  const Values whole = run(product(Role::weight, M, N, K, a, b), Values(M * N));
  Values c(M * N);
  int64_t k = 0;
  for (const int64_t count : {1, 255, 37, 300, 7}) {
    Gemm p = product(Role::weight, M, N, count, a, b);
    p.a.data = p.a.at<float>(0, k).data;
    p.b.data = p.b.at<float>(k, 0).data;
    p.accumulate = k > 0;
    c = run(p, c);
    k += count;
  }
  ASSERT_EQ(k, K);
  EXPECT_EQ(c, whole);
}

TEST(Gemm, KeepsNotANumberAndInfinity) {
  const int64_t M = 9, N = 50, K = 20;
  Values a = random_values(M * K, 1);
  const Values b = random_values(K * N, 2);
  a[3 * K + 5] = std::numeric_limits<float>::quiet_NaN();
  a[4 * K + 6] = std::numeric_limits<float>::infinity();
  const Values c = run(product(Role::input, M, N, K, a, b), Values(M * N));
  for (int64_t j = 0; j < N; ++j) {
    EXPECT_TRUE(std::isnan(c[3 * N + j]));
    EXPECT_TRUE(std::isinf(c[4 * N + j]));
    EXPECT_TRUE(std::isfinite(c[5 * N + j]));
  }
}

// ---- 16 bits ------------------------------------------------------------------------------------

template <typename S>
std::vector<S> narrowed(const Values& values) {
  std::vector<S> made;
  for (const float x : values) made.push_back(S::nearest(x));
  return made;
}
template <typename S>
Values widened(const std::vector<S>& values) {
  Values made;
  for (const S x : values) made.push_back(static_cast<float>(x));
  return made;
}

// Every operand of 16 bits: the chain of their fp32 values, rounded once.
template <typename S>
void check_narrow(Role role, DType type, int64_t M, int64_t N, int64_t K, bool accumulate) {
  SCOPED_TRACE(::testing::Message() << M << " x " << N << " x " << K << " " << dtype_name(type));
  const auto a = narrowed<S>(random_values(M * K, 1));
  const auto b = narrowed<S>(random_values(K * N, 2));
  auto c = narrowed<S>(random_values(M * N, 3));
  const Values wide_a = widened(a), wide_b = widened(b);
  Gemm wide = product(role, M, N, K, wide_a, wide_b);
  wide.accumulate = accumulate;
  const auto want = narrowed<S>(plainly(wide, widened(c)));
  Gemm p = wide;
  p.a.data = a.data();
  p.b.data = b.data();
  p.a.type = p.b.type = p.c = type;
  Values sums(M);
  if (role == Role::weight) p.sums = sums.data();
  std::vector<std::byte> scratch(gemm_scratch_bytes(p));
  gemm(c.data(), p, scratch.data());
  EXPECT_EQ(widened(c), widened(want));
  if (role != Role::weight || accumulate) return;
  for (int64_t i = 0; i < M; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += wide_a[k * M + i];
    EXPECT_EQ(sums[i], sum) << "row " << i;
  }
}

TEST_P(EveryRole, SixteenBitsAreWidenedAndTheResultIsRoundedOnce) {
  for (const auto& [M, N, K] : kShapes) {
    for (const bool accumulate : {false, true}) {
      check_narrow<Bf16>(GetParam(), DType::bf16, M, N, K, accumulate);
    }
    check_narrow<F16>(GetParam(), DType::f16, M, N, K, true);
  }
  // More rows than sums are held of, and more depth than a block.
  check_narrow<Bf16>(GetParam(), DType::bf16, 2500, 33, 700, false);
}

// Whatever the machine multiplies them with: micro-batches of odd sizes tear pairs apart.
TEST(Gemm, TakesAnInterruptedSumOfBf16UpAgain) {
  const int64_t M = 70, N = 100, K = 600;
  const auto a = narrowed<Bf16>(random_values(M * K, 1)),
             b = narrowed<Bf16>(random_values(K * N, 2));
  const auto part = [&](int64_t k, int64_t count) {
    Gemm p{M, N, count, {&a[k * M], DType::bf16, 1, M}, {&b[k * N], DType::bf16, N, 1}};
    p.accumulate = k > 0;
    return p;
  };
  const Values whole = run(part(0, K), Values(M * N));
  Values c(M * N);
  int64_t k = 0;
  for (const int64_t count : {1, 255, 37, 300, 7}) {
    c = run(part(k, count), c);
    k += count;
  }
  ASSERT_EQ(k, K);
  EXPECT_EQ(c, whole);
}

// Packed and multiplied in pairs, with the machine's own instruction or without: the chain of fp32.
TEST(Gemm, PairsOfBf16AreTheChainOfMultiplyAdds) {
  constexpr int kRows = 3;
  for (const int64_t K : {1, 2, 31, 32, 33, 70}) {
    for (const int64_t columns : {int64_t{1}, int64_t{kLanes - 1}, int64_t{kLanes}}) {
      const auto a = narrowed<Bf16>(random_values(kRows * K, 1));
      for (const bool by_rows : {true, false}) {
        SCOPED_TRACE(::testing::Message() << K << " x " << columns << (by_rows ? " rows" : ""));
        const auto b = narrowed<Bf16>(random_values(K * columns, 2));
        const StridedOf<Bf16> view{b.data(), by_rows ? columns : 1, by_rows ? 1 : K};
        const int64_t units = (K + 1) / 2;
        std::vector<Bf16Pair> packed(units * kLanes), rows(kRows * units);
        pack_panel(packed.data(), view, K, columns, kLanes);
        for (int64_t i = 0; i < kRows; ++i) pack_run(&rows[i * units], &a[i * K], K);
        Values c(kRows * kLanes);
        micro_gemm<kRows, 1>(c.data(), kLanes, StridedOf<Bf16Pair>{rows.data(), units, 1},
                             packed.data(), units, FromZero());
        for (int64_t i = 0; i < kRows; ++i) {
          for (int64_t j = 0; j < kLanes; ++j) {
            float want = 0;
            for (int64_t k = 0; k < K && j < columns; ++k) {
              const auto x = static_cast<float>(a[i * K + k]);
              want = __builtin_fmaf(x, static_cast<float>(*view.at(k, j).data), want);
            }
            EXPECT_EQ(c[i * kLanes + j], want) << i << ", " << j;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ebb::cpu
