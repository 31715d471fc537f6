// AdaLN, the gated residual and the norm of q and k.
#include "op_case.h"

namespace ebb {
namespace {

struct Sizes {
  int64_t B, T, D;
};

const Sizes kGrid[] = {{1, 1, 13},  {1, 7, 8},    {3, 1, 50},   {2, 7, 50},
                       {1, 65, 13}, {2, 130, 64}, {3, 65, 192}, {5, 16, 384}};

TEST(AdaLNOps, AgreeWithTheReference) {
  for (const auto& [B, T, D] : kGrid) {
    check_against_reference(AdaLN{B, T, D, 2, 0, 1});
    check_against_reference(AdaLN{B, T, D, 6, 3, 4});
    for (const bool residual : {false, true}) {
      check_against_reference(AdaLNBackward{B, T, D, 2, 0, 1, residual});
      check_against_reference(AdaLNBackward{B, T, D, 6, 3, 4, residual});
    }
  }
}

TEST(AdaLNOps, SixteenBitsAgreeWithTheReference) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const auto& [B, T, D] : kGrid) {
      check_against_reference(AdaLN{B, T, D, 6, 3, 4, type});
      for (const bool residual : {false, true}) {
        check_against_reference(AdaLNBackward{B, T, D, 6, 3, 4, residual, type});
      }
      check_against_reference(AddGated{B, T, D, 6, 5, type});
      check_against_reference(AddGatedBackward{B, T, D, 6, 5, type});
    }
    for (const auto kind : {QkNormKind::layer, QkNormKind::rms}) {
      check_against_reference(QkNorm{2, 7, 3, 12, kind, type});
      check_against_reference(QkNormBackward{2, 7, 3, 12, kind, type});
    }
  }
}

// Rows far from 0 cancel when the mean is taken off: the variance must not be E[x^2] - E[x]^2.
TEST(AdaLNOps, RowsWithALargeMeanAgreeWithTheReference) {
  const auto far = [](OpValues<double>& v) {
    for (double& x : v.reads[0]) x = static_cast<float>(x + 300);
  };
  // One rounding of x near 300 is 1.5e-5, and the mean in stats has it too.
  check_against_reference(AdaLN{2, 7, 50, 6, 0, 1}, {.tolerance = 3e-5, .adjust = far});
}

// A row of equal numbers has no variance: eps alone keeps 1/std finite.
TEST(AdaLNOps, ConstantRowsAgreeWithTheReference) {
  const auto constant = [](OpValues<double>& v) {
    std::fill(v.reads[0].begin(), v.reads[0].end(), 0.5);
  };
  check_against_reference(AdaLN{2, 7, 64, 6, 0, 1}, {.adjust = constant});
}

TEST(AdaLNOps, GradientsAreExact) {
  for (const bool residual : {false, true}) {
    check_gradient(AdaLN{2, 3, 5, 6, 3, 4}, {AdaLNBackward{2, 3, 5, 6, 3, 4, residual}});
    check_gradient(AdaLN{1, 1, 13, 2, 0, 1}, {AdaLNBackward{1, 1, 13, 2, 0, 1, residual}});
    check_gradient(AdaLN{3, 4, 8, 2, 1, 0}, {AdaLNBackward{3, 4, 8, 2, 1, 0, residual}});
  }
}

TEST(AddGatedOps, AgreeWithTheReference) {
  for (const auto& [B, T, D] : kGrid) {
    for (const int64_t gate : {2, 5}) {
      check_against_reference(AddGated{B, T, D, 6, gate});
      check_against_reference(AddGatedBackward{B, T, D, 6, gate});
    }
    check_against_reference(AddGated{B, T, D, 1, 0});
    check_against_reference(AddGatedBackward{B, T, D, 1, 0});
  }
}

TEST(AddGatedOps, GradientsAreExact) {
  check_gradient(AddGated{2, 3, 5, 6, 2}, {AddGatedBackward{2, 3, 5, 6, 2}});
  check_gradient(AddGated{1, 1, 13, 1, 0}, {AddGatedBackward{1, 1, 13, 1, 0}});
}

struct HeadSizes {
  int64_t B, T, H, d;
};

TEST(QkNormOps, AgreeWithTheReference) {
  for (const auto kind : {QkNormKind::layer, QkNormKind::rms}) {
    for (const auto& [B, T, H, d] : {HeadSizes{1, 1, 1, 8}, HeadSizes{2, 7, 3, 12},
                                     HeadSizes{1, 65, 3, 64}, HeadSizes{2, 130, 2, 72}}) {
      check_against_reference(QkNorm{B, T, H, d, kind});
      check_against_reference(QkNormBackward{B, T, H, d, kind});
    }
  }
}

TEST(QkNormOps, GradientsAreExact) {
  for (const auto kind : {QkNormKind::layer, QkNormKind::rms}) {
    check_gradient(QkNorm{2, 3, 2, 5, kind}, {QkNormBackward{2, 3, 2, 5, kind}});
    check_gradient(QkNorm{1, 1, 1, 8, kind}, {QkNormBackward{1, 1, 1, 8, kind}});
  }
}

}  // namespace
}  // namespace ebb
