// Linear and its three gradients.
#include "op_case.h"

namespace ebb {
namespace {

struct Sizes {
  int64_t R, K, N;
};

const Sizes kGrid[] = {
    {1, 1, 1},     {1, 13, 50},   {3, 50, 13},   {7, 17, 1},    {130, 13, 50},   {130, 1, 7},
    {17, 1000, 7}, {1, 256, 192}, {64, 96, 288}, {65, 192, 64}, {600, 200, 300},
};

TEST(LinearOps, AgreeWithTheReference) {
  for (const auto& [R, K, N] : kGrid) {
    check_against_reference(Linear{R, K, N});
    check_against_reference(Linear{R, K, N, LinearEnd::gelu});
    check_against_reference(Linear{R, K, N, LinearEnd::gelu_aside});
    check_against_reference(LinearBackwardInput{R, K, N});
    check_against_reference(LinearBackwardInput{R, K, N, true});
    check_against_reference(LinearBackwardParams{R, K, N});
    check_against_reference(LinearBackwardParams{R, K, N, true});
  }
}

TEST(LinearOps, SixteenBitsAgreeWithTheReference) {
  constexpr DType k32 = DType::f32;
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const auto& [R, K, N] : kGrid) {
      for (const auto end : {LinearEnd::plain, LinearEnd::gelu, LinearEnd::gelu_aside}) {
        check_against_reference(Linear{R, K, N, end, type, DType::bf16, type});
      }
      check_against_reference(Linear{R, K, N, LinearEnd::plain, k32, DType::bf16, type});
      check_against_reference(Linear{R, K, N, LinearEnd::plain, type, DType::bf16, k32});
      for (const bool gelu : {false, true}) {
        check_against_reference(LinearBackwardInput{R, K, N, gelu, type, DType::bf16, type});
      }
      check_against_reference(LinearBackwardInput{R, K, N, false, k32, DType::bf16, type});
      for (const bool begins : {false, true}) {
        check_against_reference(LinearBackwardParams{R, K, N, begins, type, type, k32});
        check_against_reference(LinearBackwardParams{R, K, N, begins, type, type, DType::bf16});
        check_against_reference(LinearBackwardParams{R, K, N, begins, type, k32, k32});
      }
    }
  }
}

// From few elements that are left to all of them: the error of a single one may be all of it.
TEST(LinearOps, MaskedWeightsAgreeWithTheReference) {
  constexpr DType k32 = DType::f32;
  for (const auto& [R, K, N] : kGrid) {
    for (const double density : {0.1, 0.5}) {
      const int64_t left = std::max<int64_t>(
          std::min<int64_t>(16, K * N), static_cast<int64_t>(density * static_cast<double>(K * N)));
      for (const auto& [type, w] :
           {std::pair{k32, k32}, {DType::bf16, DType::bf16}, {DType::f16, k32}}) {
        const auto end = left % 2 == 0 ? LinearEnd::gelu : LinearEnd::plain;
        check_against_reference(Linear{R, K, N, end, type, w, type, left});
        check_against_reference(LinearBackwardInput{R, K, N, left % 2 == 0, type, w, type, left});
        for (const bool begins : {false, true}) {
          check_against_reference(LinearBackwardParams{R, K, N, begins, type, type, w, left});
        }
      }
    }
  }
}

// A weight that is not there is a weight of zero, bit for bit; and of its gradient nothing is lost.
TEST(LinearOps, MaskedWeightsHaveTheBitsOfZeros) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const int64_t R = 130, K = 100, N = 150, left = 6001;
    const Linear masked{R, K, N, LinearEnd::gelu, type, type, type, left};
    Random random(5);
    OpValues<double> inputs = make_inputs(masked, random, 1);
    Linear whole = masked;
    whole.left = 0;
    OpValues<double> zeros = inputs;
    zeros.reads.pop_back();
    zeros.reads[1] = Column(N * K);
    size_t next = 0;
    const auto is_there = [&](int64_t i) {
      return is_left(inputs.reads.back().data(), K, i / K, i % K);
    };
    for (int64_t i = 0; i < N * K; ++i) {
      if (is_there(i)) zeros.reads[1][i] = inputs.reads[1][next++];
    }
    EXPECT_TRUE(same_results(run_on_device(masked, inputs, test_scalars(), std::byte{0}),
                             run_on_device(whole, zeros, test_scalars(), std::byte{0})))
        << dtype_name(type);

    const LinearBackwardParams few{R, K, N, true, type, type, type, left};
    LinearBackwardParams all = few;
    all.left = 0;
    OpValues<double> kept = make_inputs(few, random, 1);
    kept.reads[2] = inputs.reads.back();
    OpValues<double> dense{{kept.reads[0], kept.reads[1]}, {Column(N * K), Column(N)}, {}};
    const auto of_few = run_on_device(few, kept, test_scalars(), std::byte{0}).writes;
    const auto of_all = run_on_device(all, dense, test_scalars(), std::byte{0}).writes;
    next = 0;
    for (int64_t i = 0; i < N * K; ++i) {
      if (!is_there(i)) continue;
      ASSERT_EQ(of_few[0][next++], of_all[0][i]) << i;
    }
    EXPECT_EQ(of_few[1], of_all[1]);
  }
}

// What is recomputed must have the bits of what was kept: GELU at the end of a product sees what a
// GELU by itself would find stored.
TEST(LinearOps, GeluAtTheEndHasTheBitsOfGeluByItself) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t R = 37, K = 50, N = 60;
    const Linear aside{R, K, N, LinearEnd::gelu_aside, type, DType::bf16, type};
    Linear ends = aside;
    ends.end = LinearEnd::gelu;
    Random random(7);
    const OpValues<double> inputs = make_inputs(aside, random, 1);
    const auto both = run_on_device(aside, inputs, test_scalars(), std::byte{0}).writes;
    OpValues<double> one = inputs;
    one.writes.pop_back();
    const auto in_place = run_on_device(ends, one, test_scalars(), std::byte{0}).writes;
    const OpValues<double> by_itself{{both[0]}, {Column(R * N)}, {}};
    const auto alone =
        run_on_device(Gelu{R * N, type}, by_itself, test_scalars(), std::byte{0}).writes;
    EXPECT_EQ(both[1], alone[0]) << dtype_name(type);
    EXPECT_EQ(in_place[0], alone[0]) << dtype_name(type);
  }
}

TEST(LinearOps, ParameterGradientsOfManyRowsAgreeWithTheReference) {
  for (const int64_t N : {1, 50, 768}) check_against_reference(LinearBackwardParams{4099, 5, N});
}

TEST(LinearOps, GradientsAreExact) {
  for (const auto& [R, K, N] : {Sizes{1, 1, 1}, Sizes{5, 3, 4}, Sizes{2, 13, 7}}) {
    check_gradient(Linear{R, K, N}, {LinearBackwardInput{R, K, N}, LinearBackwardParams{R, K, N}});
    Linear masked{R, K, N};
    masked.left = (K * N + 1) / 2;
    LinearBackwardInput input{R, K, N};
    LinearBackwardParams params{R, K, N};
    input.left = params.left = masked.left;
    check_gradient(masked, {input, params});
  }
}

}  // namespace
}  // namespace ebb
