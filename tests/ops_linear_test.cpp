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
