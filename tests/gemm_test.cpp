// The matrix product of linear layers: an element's bits depend on its row, its column and the
// order of k alone.
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cpu/device.h"

namespace ebb::cpu {
namespace {

using Matrix = std::vector<float>;

Matrix random_matrix(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix m(size);
  for (float& x : m) x = normal(random);
  return m;
}

// How a and b lie in memory: forward, gradient of the input, gradient of the weight.
enum class Role { forward, input, weight };

Gemm product(Role role, int64_t M, int64_t N, int64_t K, const Matrix& a, const Matrix& b) {
  Gemm p{M, N, K, {a.data(), K, 1}, {b.data(), N, 1}};
  if (role == Role::forward) p.b = {b.data(), 1, K};
  if (role == Role::weight) p.a = {a.data(), 1, M};
  return p;
}

Matrix run(const Gemm& p, Matrix c) {
  std::vector<std::byte> scratch(gemm_scratch_bytes(p));
  gemm(c.data(), p, scratch.data());
  return c;
}

// One chain of multiply-adds for each element, as the machine has them.
Matrix plainly(const Gemm& p, Matrix c) {
  for (int64_t i = 0; i < p.M; ++i) {
    for (int64_t j = 0; j < p.N; ++j) {
      float& sum = c[i * p.N + j];
      if (!p.accumulate) sum = p.bias != nullptr ? p.bias[j] : 0.0f;
      for (int64_t k = 0; k < p.K; ++k) {
        sum = __builtin_fmaf(*p.a.at(i, k).data, *p.b.at(k, j).data, sum);
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
    const Matrix a = random_matrix(M * K, 1), b = random_matrix(K * N, 2);
    const Matrix c = random_matrix(M * N, 3), bias = random_matrix(N, 4);
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
  const int before = cpu_threads();
  const int64_t M = 333, N = 250, K = 300;
  const Matrix a = random_matrix(M * K, 1), b = random_matrix(K * N, 2), c(M * N);
  const Gemm p = product(GetParam(), M, N, K, a, b);
  set_cpu_threads(1);
  const Matrix alone = run(p, c);
  for (const int threads : {2, 3, 4, 7}) {
    set_cpu_threads(threads);
    EXPECT_EQ(run(p, c), alone) << threads;
  }
  set_cpu_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Gemm, EveryRole,
                         ::testing::Values(Role::forward, Role::input, Role::weight));

// So micro-batches of any size add up to the same gradient of a weight.
TEST(Gemm, TakesAnInterruptedSumUpAgain) {
  const int64_t M = 70, N = 100, K = 600;
  const Matrix a = random_matrix(M * K, 1), b = random_matrix(K * N, 2);
  const Matrix whole = run(product(Role::weight, M, N, K, a, b), Matrix(M * N));
  Matrix c(M * N);
  int64_t k = 0;
  for (const int64_t count : {1, 255, 37, 300, 7}) {
    Gemm p = product(Role::weight, M, N, count, a, b);
    p.a = p.a.at(0, k);
    p.b = p.b.at(k, 0);
    p.accumulate = k > 0;
    c = run(p, c);
    k += count;
  }
  ASSERT_EQ(k, K);
  EXPECT_EQ(c, whole);
}

TEST(Gemm, KeepsNotANumberAndInfinity) {
  const int64_t M = 9, N = 50, K = 20;
  Matrix a = random_matrix(M * K, 1);
  const Matrix b = random_matrix(K * N, 2);
  a[3 * K + 5] = std::numeric_limits<float>::quiet_NaN();
  a[4 * K + 6] = std::numeric_limits<float>::infinity();
  const Matrix c = run(product(Role::input, M, N, K, a, b), Matrix(M * N));
  for (int64_t j = 0; j < N; ++j) {
    EXPECT_TRUE(std::isnan(c[3 * N + j]));
    EXPECT_TRUE(std::isinf(c[4 * N + j]));
    EXPECT_TRUE(std::isfinite(c[5 * N + j]));
  }
}

}  // namespace
}  // namespace ebb::cpu
