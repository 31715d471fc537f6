// The twins as a whole: the one place where they are instantiated for all tests, and the executor
// that runs a whole program with them.
#include "op_case.h"
#include "program/builder.h"
#include "reference_executor.h"

namespace ebb {

template void run_reference<double>(const OpParams&, const Refs<double>&);
template void run_reference<float>(const OpParams&, const Refs<float>&);
template void run_reference<std::complex<double>>(const OpParams&,
                                                  const Refs<std::complex<double>>&);

namespace {

constexpr int64_t kRows = 3, kIn = 4, kOut = 2;

// z = silu(x wT + b), and the gradients of sum(dz z).
Program small_program() {
  Builder b("small", cpu_device());
  const Buf x = b.buffer("x", {kRows, kIn}, Purpose::data);
  const Buf dz = b.buffer("dz", {kRows, kOut}, Purpose::data);
  b.input(x);
  b.input(dz);
  const auto resident = [&](const char* name, Purpose purpose, Shape shape) {
    return b.declare({name, "layer", purpose, DType::f32, std::move(shape), true});
  };
  const Buf w = resident("w", Purpose::weight, {kOut, kIn});
  const Buf bias = resident("b", Purpose::weight, {kOut});
  const Buf dw = resident("dw", Purpose::gradient, {kOut, kIn});
  const Buf db = resident("db", Purpose::gradient, {kOut});
  const Buf y = b.buffer("y", {kRows, kOut}), z = b.buffer("z", {kRows, kOut});
  const Buf dy = b.buffer("dy", {kRows, kOut});
  b.emit("forward", Linear{kRows, kIn, kOut}, {x, w, bias}, {y});
  b.emit("silu", Silu{kRows * kOut}, {y}, {z});
  b.output(z);
  b.emit("dsilu", SiluBackward{kRows * kOut}, {dz, y}, {dy});
  b.emit("dweight", LinearBackwardParams{kRows, kIn, kOut}, {dy, x}, {}, {dw, db});
  return b.finish();
}

TEST(ReferenceExecutor, ProvesTheGradientOfAProgram) {
  const Program program = small_program();
  Random random(1);
  const Column x = random_column(kRows * kIn, random), w = random_column(kOut * kIn, random);
  const Column b = random_column(kOut, random), dz = random_column(kRows * kOut, random);
  const auto prepare = [&](auto& executor) {
    executor.set("x", x);
    executor.set("w", w);
    executor.set("b", b);
    executor.set("dz", dz);
  };
  ReferenceExecutor<double> real(program);
  prepare(real);
  real.run({});
  ReferenceExecutor<std::complex<double>> complex(program);
  for (size_t i = 0; i < w.size(); ++i) {
    prepare(complex);
    complex.at("w")[i] += std::complex<double>(0, 1e-50);
    complex.run({});
    double derivative = 0;
    for (size_t k = 0; k < dz.size(); ++k) {
      derivative += dz[k] * complex.get("z")[k].imag() / 1e-50;
    }
    EXPECT_NEAR(real.get("dw")[i], derivative, 1e-12);
  }
}

TEST(ReferenceExecutor, InFloatDiffersByRoundingAlone) {
  const Program program = small_program();
  Random random(2);
  const Column x = random_column(kRows * kIn, random), w = random_column(kOut * kIn, random);
  ReferenceExecutor<double> wide(program);
  ReferenceExecutor<float> narrow(program);
  const auto run = [&](auto& executor) {
    executor.set("x", x);
    executor.set("w", w);
    executor.run({});
    return Column(executor.get("z").begin(), executor.get("z").end());
  };
  expect_close("z", run(narrow), run(wide), kRounding);
}

// Nothing is 0 by luck: what no op wrote is not a number.
TEST(ReferenceExecutor, ShowsWhatWasNeverWritten) {
  Program program;
  for (const char* name : {"never", "y"}) {
    program.buffers.push_back({name, "layer", Purpose::activation, DType::f32, {2}, false});
  }
  program.ops.push_back({"repeat", "layer", Repeat{1}, {Buf{0}}, {Buf{1}}, {}, {}});
  ReferenceExecutor<double> executor(program);
  executor.run({});
  EXPECT_TRUE(std::isnan(executor.get("y")[0]));
  EXPECT_THROW(executor.set("y", Column(3)), Bug);
}

}  // namespace
}  // namespace ebb
