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
  }
}

}  // namespace
}  // namespace ebb
