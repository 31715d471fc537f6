// The update of a matrix whose moments live in a small space.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "program/ops_update.h"

namespace ebb {

// AdamW of what a projector leaves of a gradient (Zhao et al. 2024, "GaLore"). The projector q has
// `rank` orthonormal rows, each as long as the matrix's shorter side. Seen with the longer side as
// its rows, the gradient times q transposed is (long, rank): of that the moments are, and the step
// that they give, times q, is the weight's.
//
// g (rows, columns), clip (2); updates w (rows, columns), [low], q (rank, short), m (long, rank),
// v (long, rank), [m_scale, v_scale (blocks)], [ema (rows, columns)]. All else as AdamW.
//
// Where a period begins, q is made anew: the gradient's strongest directions, found from random
// ones, keyed by (seed, update, tensor, element). Where it has fewer than there are rows, rows of
// the q before are kept, and behind them random ones. The moments are carried over into the new
// space. docs/decisions/027-galore.md has the formulas.
struct GaloreAdamW {
  static constexpr const char* kName = "galore_adamw";
  static constexpr int kPasses = 2;            // over the gradient and its transpose
  static constexpr double kDependent = 1e-5;   // of a row's length: less is rounding
  static constexpr double kVanishing = 1e-30;  // such a row is none
  int64_t rows, columns, rank;
  AdamW adam;             // n: of a moment
  int64_t refresh = 200;  // updates of a period
  double scale = 1;       // of the step

  bool tall() const { return rows >= columns; }
  int64_t long_side() const { return std::max(rows, columns); }
  int64_t short_side() const { return std::min(rows, columns); }
  int64_t n() const { return rows * columns; }
  // The first periods are short: a network that begins with zeros has gradients of zero at first,
  // and others soon after.
  bool begins_period(double update) const {
    const auto before = static_cast<int64_t>(update) - 1;
    return before % refresh == 0 || (before < refresh && (before & (before - 1)) == 0);
  }
  // What a step takes over a period, on the mean.
  double flops() const {
    const double each = 4.0 * static_cast<double>(n()) * static_cast<double>(rank);
    return each * (1 + static_cast<double>(kPasses) / static_cast<double>(refresh)) + adam.flops() +
           5.0 * static_cast<double>(n());
  }
};

}  // namespace ebb
