// The two proofs that every op gets:
//   check_against_reference   the device's kernel against the plain twin in double,
//   check_gradient            the backward twin against the complex step of the forward twin.
// Together they prove the kernels' gradients without a finite difference. Adding an op to a test is
// one line; inputs and buffers follow from its signature.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "kernels/cpu/device.h"
#include "op_inputs.h"

namespace ebb {

// fp32 rounds to 6e-8; sums of some hundred terms in any order stay well below this.
inline constexpr double kRounding = 2e-6;
inline constexpr double kExact = 0;

Scalars test_scalars();
std::string describe(const OpParams& params);  // its name and shapes

// Every element that the twin set is finite and close; every other is as it was. Relative to the
// norm of the whole, and element by element ten times that, relative to the largest.
void expect_close(const std::string& what, const Column& got, const Column& want, double tolerance);

// ---- the device against the twin ---------------------------------------------------------------

// Where an op's buffers and its scratch lie: one after the other, each at a multiple of the
// device's alignment.
struct Places {
  int between = 1;  // such multiples between two, at least
  int order = 0;    // 0: reads, writes, updates, scratch; else one of those of other_places()
  int write = -1, over_read = -1;  // an output in the place of an input
};

// Far apart, and packed as the arena packs them, in so many orders that each of them lies right
// before each other in one: loops that the compiler makes vectors of ask how far their operands are
// from each other.
std::vector<Places> other_places(const OpParams& params);

// Runs the device on a copy of the inputs; what it wrote and updated is in the result.
OpValues<double> run_on_device(const OpParams& params, const OpValues<double>& inputs,
                               const Scalars& scalars, std::byte scratch_fill,
                               const Places& places = {});

// The bits of what was written and updated.
bool same_results(const OpValues<double>& a, const OpValues<double>& b);

struct Check {
  double tolerance = kRounding;
  double scale = 1;  // of the random inputs
  Scalars scalars = test_scalars();
  std::function<void(OpValues<double>&)> adjust = {};  // changes the inputs before use
};

// With one, two and three threads, however small the work: all are right, and the same bits each
// time, whatever the scratch held and wherever the buffers lie.
void check_against_reference(const OpParams& params, const Check& check = {});

// ---- the backward twin against the complex step ------------------------------------------------

struct GradientCheck {
  std::map<std::string, double> cotangents = {};  // outputs whose cotangent is this constant
  std::function<void(OpValues<double>&)> adjust = {};
};

// Buffers are matched by name: a backward op's read is an input or output of the forward op, or "d"
// and an output's name, its cotangent; what it writes or updates is "d" and an input's name, that
// input's gradient. "dres" is a gradient of x that arrives by another way. Every gradient that the
// backward ops give is checked in every element.
void check_gradient(const OpParams& forward, const std::vector<OpParams>& backward,
                    const GradientCheck& check = {});

}  // namespace ebb
