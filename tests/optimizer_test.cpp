// Optimizers: their ops against their twins, their state in every storage and in every way to carry
// out a step, and what they save.
#include "model/optimizer.h"

#include "op_case.h"
#include "plan/search.h"
#include "step_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 5;

StepSpec with(Optimizer optimizer, float clip = 0) {
  StepSpec spec = updating(clip, kBatch);
  spec.optimizer = optimizer;
  spec.weight_decay = 0.01;
  return spec;
}

std::vector<Optimizer> all_of_them() {
  std::vector<Optimizer> all;
  for (size_t i = 0; i < optimizers().size(); ++i) all.push_back(static_cast<Optimizer>(i));
  return all;
}

// Bytes a parameter of weight, moments and average.
double state_bytes_each(Optimizer optimizer, Purpose purpose) {
  const DitConfig config = named_config("DiT-S/4");
  int64_t bytes = 0;
  for (const ParamSpec& p : parameters(config)) {
    for (const StateBuffer& b : state_of(p, with(optimizer), {})) {
      if (b.purpose == purpose && p.trained()) bytes += b.bytes();
    }
  }
  return static_cast<double>(bytes) / static_cast<double>(parameter_count(config));
}

TEST(LionOps, AgreeWithTheReference) {
  for (const int64_t n : {1, 7, 17, 1000, 100003}) {
    for (const bool ema : {false, true}) {
      for (const double decay : {0.0, 0.1}) {
        check_against_reference(Lion{n, 0.9, 0.99, decay, ema});
      }
    }
  }
}

TEST(LionOps, ANormThatIsNotFiniteChangesNothing) {
  for (const double norm : {double{INFINITY}, std::nan("")}) {
    Check check{.tolerance = kExact};
    check.adjust = [norm](OpValues<double>& v) { v.reads[1] = {norm, 1.0}; };
    check_against_reference(Lion{100, 0.9, 0.99, 0.1, true}, check);
  }
}

// Where moment and gradient are zero - a label that never came - the weight stays.
TEST(LionOps, WithoutASignThereIsNoStep) {
  const OpValues<double> zero{
      {Column(40, 0.0), {1.0, 1.0}}, {}, {Column(40, 0.25), Column(40, 0.0)}};
  const auto after =
      run_on_device(Lion{40, 0.9, 0.99, 0, false}, zero, test_scalars(), std::byte{0});
  EXPECT_EQ(after.updates, zero.updates);
}

TEST(AdafactorOps, AgreeWithTheReference) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2, 1},
                                      {2, 3},
                                      {17, 31},
                                      {3, 700},
                                      {300, 3},
                                      {70, 513},
                                      {1, 1},
                                      {1, 17},
                                      {1, 1000}}) {
    for (const bool ema : {false, true}) {
      for (const double decay : {0.0, 0.1}) {
        for (const double update : {1.0, 7.0, 1e5}) {
          Check check;
          check.scalars.update = update;
          check_against_reference(Adafactor{rows, columns, decay, ema}, check);
        }
      }
    }
  }
}

TEST(AdafactorOps, ANormThatIsNotFiniteChangesNothing) {
  for (const double norm : {double{INFINITY}, std::nan("")}) {
    Check check{.tolerance = kExact};
    check.adjust = [norm](OpValues<double>& v) { v.reads[1] = {norm, 1.0}; };
    check_against_reference(Adafactor{10, 10, 0.1, true}, check);
  }
}

// By hand: at the first update v is the mean of squares; the step is then 1, or less where its root
// mean square is above 1, times the weights' size.
TEST(AdafactorOps, TheFirstStepIsAShareOfTheWeightsSize) {
  const OpValues<double> before{
      {Column(4, 0.5), {1.0, 1.0}}, {}, {Column(4, 2.0), Column(2, 0.0), Column(2, 0.0)}};
  Scalars scalars = test_scalars();
  scalars.lr = 0.25f;
  scalars.update = 1;
  const auto after =
      run_on_device(Adafactor{2, 2, 0, false}, before, scalars, std::byte{0}).updates;
  EXPECT_EQ(after[1], Column(2, 0.25));
  EXPECT_EQ(after[2], Column(2, 0.25));
  for (const double w : after[0]) EXPECT_NEAR(w, 2 - 0.25 * 2, 1e-6);
}

TEST(Optimizers, AdafactorKeepsNextToNothing) {
  EXPECT_LT(state_bytes_each(Optimizer::adafactor, Purpose::moment), 0.1);
  EXPECT_NEAR(state_bytes_each(Optimizer::adafactor, Purpose::ema), 4, 0.05);
}

TEST(Optimizers, LionKeepsOneMomentAParameter) {
  EXPECT_NEAR(state_bytes_each(Optimizer::adamw, Purpose::moment), 8, 0.05);
  EXPECT_NEAR(state_bytes_each(Optimizer::lion, Purpose::moment), 4, 0.05);
  EXPECT_NEAR(state_bytes_each(Optimizer::lion, Purpose::ema), 4, 0.05);
}

// However a step is carried out, its bits are those of the plain one.
TEST(Optimizers, AreExactUnderEveryTechnique) {
  const OneThread one_thread;
  for (const DitConfig& config : {small_config(), uneven_config(Objective::flow)}) {
    const Schedule lean = plain_schedule(std::vector<KeepSet>(config.depth()));
    for (const Optimizer optimizer : all_of_them()) {
      for (const float clip : {0.0f, 0.05f}) {
        SCOPED_TRACE(testing::Message()
                     << optimizers()[static_cast<size_t>(optimizer)].name << " clip " << clip);
        const StepSpec spec = with(optimizer, clip);
        const Bits plain = run_with(config, spec, {});
        expect_same(plain, run_with(config, spec, {.release = true}));
        Choices c{.micro_batch = 2, .layer_major = true, .release = true, .schedule = lean};
        expect_same(plain, run_with(config, spec, c));
        c.offload = to_disk(true, true, true);
        expect_same(plain, run_with(config, spec, c));
        expect_same(plain, run_with(config, spec, {.micro_batch = 3}));
      }
    }
  }
}

TEST(Optimizers, DebugMemoryPasses) {
  const OneThread one_thread;
  for (const Optimizer optimizer : all_of_them()) {
    Choices c{.release = true};
    c.storage = {DType::bf16, DType::bf16, Moments::f32, DType::bf16};
    expect_same(run_with(small_config(), with(optimizer), c),
                run_with(small_config(), with(optimizer), c, Executor::Mode::debug_memory));
  }
}

// A step that learns: with every optimizer the loss of one batch falls.
TEST(Optimizers, Learn) {
  const OneThread one_thread;
  const DitConfig config = small_config(Objective::flow);
  for (const Optimizer optimizer : all_of_them()) {
    SCOPED_TRACE(optimizers()[static_cast<size_t>(optimizer)].name);
    StepSpec spec = with(optimizer);
    spec.weight_decay = 0;
    Rig rig({write_step(config, spec, cpu_device())});
    rig.set_weights(config);
    double first = 0, last = 0;
    for (int k = 0; k < 60; ++k) {
      rig.set_batch(config, kBatch);
      Scalars scalars = training_scalars(k);
      scalars.step = 0;  // the same noise and times again
      scalars.lr = optimizer == Optimizer::lion ? 1e-3f : 3e-3f;
      if (optimizer == Optimizer::adafactor) scalars.lr = 2e-2f;
      scalars.update = k + 1;
      rig.executor().run(scalars);
      (k == 0 ? first : last) = rig.get(kLoss)[0];
    }
    EXPECT_LT(last, 0.7 * first);
  }
}

TEST(Optimizers, TheirMomentsAreCodedOnlyWhereTheyHaveSome) {
  for (const Optimizer optimizer : all_of_them()) {
    const OptimizerKind& kind = optimizers()[static_cast<size_t>(optimizer)];
    Decisions coded;
    coded.moments = Moments::coded;
    const auto plan = [&] {
      return step_candidates(small_config(), with(optimizer), coded, middling_machine());
    };
    if (kind.codes_moments) {
      EXPECT_EQ(plan().back().choices.storage.moments, Moments::coded);
    } else {
      EXPECT_THROW(plan(), Error);
    }
  }
}

}  // namespace
}  // namespace ebb
