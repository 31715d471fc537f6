// Steps with moments in a small space: the same bits in every way through them, what they learn,
// and what they take.
#include "model/optimizer.h"
#include "plan/search.h"
#include "step_runs.h"

namespace ebb {
namespace {

// What six steps leave behind: periods begin with five of them.
Bits after_steps(const DitConfig& config, StepSpec spec, const Choices& choices,
                 Executor::Mode mode = Executor::Mode::normal) {
  spec.choices = choices;
  Rig machine({write_step(config, spec, cpu_device())}, with_disk(middling_machine()), mode);
  machine.set_weights(config);
  for (int64_t k = 0; k < 6; ++k) {
    machine.set_batch(config, spec.batch);
    Scalars scalars = training_scalars(k);
    scalars.update = static_cast<double>(k + 1);
    machine.executor().run(scalars);
  }
  return results(machine);
}

TEST(Galore, EveryWayThroughAStepHasTheSameBits) {
  const OneThread one_thread;
  for (const DitConfig& config :
       {small_config(), uneven_config(Objective::flow), sparse_config()}) {
    for (const bool narrow : {false, true}) {
      Storage storage{.galore_rank = 4};
      if (narrow) {
        storage.activation = storage.ema = DType::bf16;
        storage.moments = Moments::coded;
      }
      for (const float clip : {0.0f, 0.05f}) {
        SCOPED_TRACE(testing::Message() << (narrow ? "narrow" : "whole") << " clip " << clip);
        const StepSpec spec = updating(clip, 5);
        const Bits plain = after_steps(config, spec, {.storage = storage});
        EXPECT_EQ(plain.count("q.final_layer.linear.weight"), 1u);
        Choices way{.micro_batch = 2, .storage = storage};
        expect_same(plain, after_steps(config, spec, way));
        way.layer_major = way.release = true;
        expect_same(plain, after_steps(config, spec, way));
        way.offload = to_disk(true, true, true);
        expect_same(plain, after_steps(config, spec, way));
        set_team_threads(3);
        expect_same(plain, after_steps(config, spec, {.storage = storage}));
        set_team_threads(1);
      }
    }
  }
}

TEST(Galore, DebugMemoryPasses) {
  const OneThread one_thread;
  const Choices c{.release = true, .storage = {.galore_rank = 4}};
  expect_same(after_steps(small_config(), updating(0.1f, 4), c),
              after_steps(small_config(), updating(0.1f, 4), c, Executor::Mode::debug_memory));
}

// As AdamW's does: with a quarter of the directions, and steps of AdamW's size.
TEST(Galore, TheLossOfABatchFalls) {
  const OneThread one_thread;
  const DitConfig config = small_config(Objective::flow);
  double last[2] = {};
  for (const int64_t rank : {0, 4}) {
    StepSpec spec = step_spec(5);
    spec.galore_scale = 1;
    spec.choices.storage.galore_rank = rank;
    Rig rig({write_step(config, spec, cpu_device())});
    rig.set_weights(config);
    double first = 0;
    for (int k = 0; k < 60; ++k) {
      rig.set_batch(config, 5);
      Scalars scalars = training_scalars(k);
      scalars.step = 0;  // the same noise and times again
      scalars.lr = 3e-3f;
      scalars.update = k + 1;
      rig.executor().run(scalars);
      (k == 0 ? first : last[rank > 0]) = rig.get(kLoss)[0];
    }
    EXPECT_LT(last[rank > 0], 0.7 * first) << rank;
  }
  EXPECT_LT(last[1], 2 * last[0]);
}

// ---- bytes and time -----------------------------------------------------------------------------

int64_t moment_bytes(const DitConfig& config, const Storage& storage) {
  StepSpec spec = step_spec(8);
  spec.choices.storage = storage;
  const Plan plan = make_plans({write_step(config, spec, cpu_device())}).plans[0];
  int64_t bytes = 0;
  for (const Buffer& b : plan.program.buffers) {
    if (b.resident && b.purpose == Purpose::moment) bytes += b.bytes();
  }
  return bytes;
}

TEST(Galore, AQuarterOfTheDirectionsTakesLessThanAThirdOfTheBytes) {
  const DitConfig config = named_config("DiT-B/2");
  const auto whole = static_cast<double>(moment_bytes(config, {}));
  EXPECT_LE(static_cast<double>(moment_bytes(config, {.galore_rank = 192})), 0.30 * whole);
  const Storage coded{.moments = Moments::coded, .galore_rank = 192};
  EXPECT_LE(static_cast<double>(moment_bytes(config, coded)), 0.115 * whole);
}

// Planned on a machine that nobody has measured: ops are as long as their FLOPs and bytes.
TEST(Galore, IsUsedWhereItIsAllowedAndNeeded) {
  const DitConfig config = named_config("DiT-S/8");
  const StepSpec spec = step_spec(8);
  Decisions d;
  d.moments = Moments::f32;
  const auto candidates = [&] { return step_candidates(config, spec, d, middling_machine()); };
  const int64_t without = candidates().back().total_bytes();
  d.allowed = {"galore"};
  const std::vector<Candidate> found = candidates();
  EXPECT_EQ(found.front().choices.storage.galore_rank, 0);
  EXPECT_EQ(found.back().choices.storage.galore_rank, config.width / 4);
  EXPECT_LT(found.back().total_bytes(), without);
  d.allowed.clear();
  d.galore_rank = 17;
  for (const Candidate& c : candidates()) EXPECT_EQ(c.choices.storage.galore_rank, 17);
}

TEST(Galore, RanksThatLeaveNothingAwayAreRefused) {
  const DitConfig config = small_config();
  Decisions d;
  const auto plan = [&](int64_t rank) {
    d.galore_rank = rank;
    return step_candidates(config, step_spec(2), d, middling_machine()).size();
  };
  EXPECT_GT(plan(config.width - 1), 0u);
  EXPECT_THROW(plan(config.width), Error);
  for (const Optimizer other : {Optimizer::lion, Optimizer::adafactor}) {
    StepSpec spec = step_spec(2);
    spec.optimizer = other;
    EXPECT_THROW(step_candidates(config, spec, d, middling_machine()), Error);
  }
}

}  // namespace
}  // namespace ebb
