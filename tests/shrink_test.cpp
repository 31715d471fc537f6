// Penalties that shrink weights after each update: L1 of each number, the group lasso of each head
// and MLP unit.
#include <cmath>

#include "model/optimizer.h"
#include "model/structure.h"
#include "op_case.h"
#include "step_runs.h"

namespace ebb {
namespace {

TEST(ShrinkOps, AgreeWithTheReference) {
  for (const double l1 : {0.0, 20.0}) {
    for (const bool begins : {false, true}) {
      check_against_reference(StructureSquares{24, 17, 4, 2, false, begins, l1},
                              {.tolerance = 1e-7});
      check_against_reference(StructureSquares{7, 300, 60, 5, true, begins, l1},
                              {.tolerance = 1e-7});
    }
    for (const bool ema : {false, true}) {
      check_against_reference(Shrink{5, 101, l1, ema});
      check_against_reference(Shrink{24, 17, l1, ema, 30, 4, 2, false});
      check_against_reference(Shrink{7, 300, l1, ema, 30, 60, 5, true});
    }
  }
}

TEST(ShrinkOps, ANormThatIsNotFiniteChangesNothing) {
  for (const double norm : {double{INFINITY}, std::nan("")}) {
    Check check{.tolerance = kExact};
    check.adjust = [norm](OpValues<double>& v) { v.reads[0] = {norm, 1.0}; };
    check_against_reference(Shrink{24, 17, 20, true, 30, 4, 2, false}, check);
  }
}

StepSpec shrinking(double l1, double lasso, int64_t batch = 4) {
  StepSpec spec = updating(0.05f, batch);
  spec.l1 = l1;
  spec.group_lasso = lasso;
  return spec;
}

TEST(Shrinking, ExactTechniquesChangeNoBit) {
  const OneThread one_thread;
  const DitConfig config = uneven_config(Objective::flow);
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::lion, Optimizer::adafactor}) {
    for (const auto& [l1, lasso] : {std::pair{0.5, 0.0}, {0.0, 0.5}, {0.3, 0.2}}) {
      StepSpec spec = shrinking(l1, lasso);
      spec.optimizer = optimizer;
      const Bits plain = expect_exact_techniques(config, spec);
      StepSpec without = spec;
      without.l1 = without.group_lasso = 0;
      EXPECT_NE(run_with(config, without, {}), plain);
    }
  }
}

std::vector<float> floats(const Bits& bits, const std::string& name) {
  std::vector<float> values(bits.at(name).size() / sizeof(float));
  std::memcpy(values.data(), bits.at(name).data(), bits.at(name).size());
  return values;
}

// w <- sign(w) max(0, |w| - lr l1), after the same update without it. One step, for the next one's
// gradient is another.
class OneStep : public testing::Test {
 protected:
  static Bits after(const DitConfig& config, const StepSpec& spec) {
    Rig machine({write_step(config, spec, cpu_device())});
    machine.set_weights(config);
    machine.set_batch(config, spec.batch);
    machine.executor().run(training_scalars(0));
    return results(machine);
  }
  const OneThread one_thread_;
};

TEST_F(OneStep, L1IsTheProximalStepOfEachNumber) {
  const DitConfig config = small_config();
  const double l1 = 3, by = training_scalars(0).lr * l1;
  const Bits plain = after(config, shrinking(0, 0)), made = after(config, shrinking(l1, 0));
  int64_t zeros = 0;
  for (const ParamSpec& spec : parameters(config)) {
    const auto before = floats(plain, spec.name), now = floats(made, spec.name);
    for (size_t i = 0; i < now.size(); ++i) {
      const double w = before[i];
      const double wanted = spec.prunable() ? std::copysign(std::max(0.0, std::abs(w) - by), w) : w;
      ASSERT_NEAR(now[i], wanted, 1e-7) << spec.name;
      zeros += spec.prunable() && now[i] == 0 ? 1 : 0;
    }
  }
  EXPECT_GT(zeros, 100);  // exactly zero
}

// w_S <- w_S max(0, 1 - lr lambda sqrt|S| / ||w_S||), over all of a structure's tensors.
TEST_F(OneStep, TheGroupLassoIsTheProximalStepOfEachStructure) {
  const DitConfig config = uneven_config(Objective::flow);
  const double lambda = 25, lr = training_scalars(0).lr;
  const Bits plain = after(config, shrinking(0, 0)), made = after(config, shrinking(0, lambda));
  using Key = std::tuple<int64_t, Structure, int64_t>;
  const auto each = [&](const ParamSpec& spec, auto body) {
    const Belonging place = belonging(spec, config);
    if (!place.member) return;
    const int64_t count = structure_count(config.blocks[*place.block], place.member->kind);
    for (int64_t i = 0; i < element_count(spec.shape); ++i) {
      const int64_t along = place.member->columns ? i % spec.columns() : i / spec.columns();
      body(i, Key{*place.block, place.member->kind, along / place.member->width % count});
    }
  };
  std::map<Key, double> squares;
  std::map<Key, int64_t> sizes;
  for (const ParamSpec& spec : parameters(config)) {
    const auto w = floats(plain, spec.name);
    each(spec, [&](int64_t i, const Key& key) {
      squares[key] += static_cast<double>(w[i]) * w[i];
      ++sizes[key];
    });
  }
  int gone = 0, left = 0;
  for (const ParamSpec& spec : parameters(config)) {
    const auto before = floats(plain, spec.name), now = floats(made, spec.name);
    const auto average = floats(made, spec.trained() ? kAverage + spec.name : spec.name);
    const auto old_average = floats(plain, spec.trained() ? kAverage + spec.name : spec.name);
    std::vector<double> wanted(before.begin(), before.end());
    each(spec, [&](int64_t i, const Key& key) {
      const double by = lr * lambda * std::sqrt(static_cast<double>(sizes[key]));
      const double factor = std::max(0.0, 1 - by / std::sqrt(squares[key]));
      wanted[i] *= factor;
      (factor == 0 ? gone : left) += 1;
    });
    for (size_t i = 0; i < now.size(); ++i) {
      ASSERT_NEAR(now[i], wanted[i], 1e-6) << spec.name;
      ASSERT_EQ(wanted[i] == 0, now[i] == 0) << spec.name;
      if (!spec.trained()) continue;  // the average is that of what is left: 0.9 of it is older
      ASSERT_NEAR(average[i], old_average[i] + 0.1 * (wanted[i] - before[i]), 1e-6) << spec.name;
    }
  }
  EXPECT_GT(gone, 0);
  EXPECT_GT(left, 0);
}

// Each number first, then structures: the proximal step of both penalties together.
TEST_F(OneStep, BothTogetherAreOneAfterTheOther) {
  const DitConfig config = small_config(Objective::flow);
  const double l1 = 2, lambda = 8, lr = training_scalars(0).lr;
  const Bits first = after(config, shrinking(l1, 0)), made = after(config, shrinking(l1, lambda));
  const std::string names[] = {"blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc1.bias",
                               "blocks.0.mlp.fc2.weight"};
  const int64_t D = config.width, M = config.blocks[0].mlp;
  for (int64_t unit = 0; unit < M; ++unit) {
    double squares = 0;
    for (const std::string& name : names) {
      const auto w = floats(first, name);
      for (int64_t i = 0; i < std::ssize(w); ++i) {
        const int64_t of = name == names[2] ? i % M : name == names[0] ? i / D : i;
        if (of == unit) squares += static_cast<double>(w[i]) * w[i];
      }
    }
    const double by = lr * lambda * std::sqrt(2.0 * static_cast<double>(D) + 1);
    const double factor = std::max(0.0, 1 - by / std::sqrt(squares));
    const auto before = floats(first, names[0]), now = floats(made, names[0]);
    for (int64_t i = unit * D; i < (unit + 1) * D; ++i) {
      ASSERT_NEAR(now[i], before[i] * factor, 1e-6) << unit;
    }
  }
}

// Stored in 16 bits and 8 as well: near what fp32 gives.
TEST(Shrinking, GoesWithEveryStorage) {
  const OneThread one_thread;
  const DitConfig config = small_config(Objective::flow);
  Choices narrow;
  narrow.storage.activation = DType::bf16;
  narrow.storage.moments = Moments::coded;
  narrow.storage.ema = DType::bf16;
  const StepSpec spec = shrinking(3, 5);
  const Bits made = run_with(config, spec, narrow);
  Choices released = narrow;
  released.layer_major = released.release = true;
  released.micro_batch = 2;
  expect_same(made, run_with(config, spec, released));
}

}  // namespace
}  // namespace ebb
