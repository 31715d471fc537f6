// Plans of random steps under random budgets: each is proven by the validator, and what it says is
// what happens when it runs.
#include <gtest/gtest.h>

#include "plan/cost.h"
#include "plan/packing.h"
#include "random_runs.h"

namespace ebb {
namespace {

// The fastest candidate within a budget drawn between the least and the most that any takes.
Candidate within_random_budget(const std::vector<Candidate>& front, Random& random) {
  const int64_t budget = between(front.back().total_bytes(), front.front().total_bytes(), random);
  for (const Candidate& candidate : front) {
    if (candidate.total_bytes() <= budget) return candidate;
  }
  return front.back();
}

double weighted_seconds(const Candidate& made) {
  return made.seconds * (1 + kReluctance * used_reluctantly(made.choices));
}

void expect_wishes(const Choices& made, const RandomRun& run) {
  if (run.decisions.micro_batch) {
    EXPECT_EQ(made.micro_batch, *run.decisions.micro_batch);
  }
  if (run.decisions.layer_major) {
    EXPECT_EQ(made.layer_major, *run.decisions.layer_major);
  }
  if (run.decisions.release) {
    EXPECT_EQ(made.release, *run.decisions.release);
  }
  if (run.decisions.keep) {
    for (const BlockChoice& block : block_choices(made.schedule, run.config.depth())) {
      EXPECT_EQ(block, (BlockChoice{*run.decisions.keep, 1}));
    }
  }
}

TEST(RandomPlans, FiveHundredPassTheIndependentValidator) {
  const OneThread one_thread;
  const Machine in_memory = middling_machine(), beside_a_disk = with_disk(middling_machine());
  Random random(17);
  for (int i = 0; i < 500 / kSanitizedShare; ++i) {
    const Machine& machine = i % 5 == 2 ? beside_a_disk : in_memory;
    RandomRun run = random_run(random, i % 50 == 0 ? 64 : 4, i % 3 > 0 ? 3 : 8);
    // Five of the sizes that people use: planning those takes longer.
    if (i % 100 == 1) run.config = named_config(i % 200 == 1 ? "DiT-S/8" : "DiT-B/8");
    SCOPED_TRACE(std::to_string(i) + ": " + run.text());
    const auto front = step_candidates(run.config, run.step, run.decisions, machine);
    ASSERT_FALSE(front.empty());
    for (size_t k = 1; k < front.size(); ++k) {
      EXPECT_LT(front[k].total_bytes(), front[k - 1].total_bytes());
      EXPECT_GE(weighted_seconds(front[k]), weighted_seconds(front[k - 1]));
    }
    const Candidate chosen = within_random_budget(front, random);
    expect_wishes(chosen.choices, run);
    run.step.choices = chosen.choices;
    const PlanSet set = make_plans({write_step(run.config, run.step, cpu_device())});
    const Plan& plan = set.plans[0];
    ASSERT_NO_THROW(validate_plan(plan, set.arena_bytes));
    EXPECT_THROW(validate_plan(plan, set.arena_bytes - Limits{}.alignment), Bug)
        << "one line too few";
    EXPECT_EQ(plan.bytes, set.arena_bytes);
    EXPECT_EQ(plan.ledger.total(), plan.bytes);
    // An estimate above the plan would refuse budgets that are enough; one below only costs time.
    const auto bound = static_cast<double>(plan.bytes - plan.ledger.gap);
    // What is away is fetched early or late by what the blocks beside it keep, which is guessed.
    const double off = chosen.choices.offload.any() ? 0.15 : 0.02;
    EXPECT_NEAR(static_cast<double>(chosen.bytes), bound, off * bound);
  }
}

// Two steps: the second starts from weights that the first has changed, so its loss speaks for
// every gradient.
std::vector<float> losses(Rig& machine, const RandomRun& run) {
  std::vector<float> found;
  machine.set_weights(run.config);
  for (int64_t k = 0; k < 2; ++k) {
    machine.set_batch(run.config, run.step.batch);
    if (run.step.given_noise) {
      Random random(11);
      machine.set(
          kBatchNoise,
          random_column(run.step.batch * run.config.channels * run.config.pixels(), random));
      machine.set(kBatchTime, random_times(run.step.batch, run.config.objective, random));
    }
    machine.executor().run(training_scalars(k));
    found.push_back(*machine.host(kLoss));
  }
  return found;
}

TEST(RandomPlans, SixtyRunInExactlyTheirArenasAndGiveTheLossOfThePlainStep) {
  const OneThread one_thread;
  const Machine machine = middling_machine();
  Random random(19);
  for (int i = 0; i < 60 / kSanitizedShare; ++i) {
    // Proving every op's declarations takes long: a few of the smallest.
    const bool checked = i % 6 == 0;
    RandomRun run = random_run(random, checked ? 3 : 5, checked ? 2 : 4);
    while (run.config.width > (checked ? 24 : 64)) run = random_run(random, 3, 2);
    SCOPED_TRACE(std::to_string(i) + ": " + run.text());
    const auto front = step_candidates(run.config, run.step, run.decisions, machine);
    ASSERT_FALSE(front.empty());
    run.step.choices = within_random_budget(front, random).choices;
    Rig rig({write_step(run.config, run.step, cpu_device())},
            checked ? Executor::Mode::debug_memory : Executor::Mode::normal);
    const std::vector<float> found = losses(rig, run);
    EXPECT_EQ(rig.executor().peak_bytes(), rig.plan().bytes);
    EXPECT_EQ(rig.plans().arena_bytes, rig.plan().bytes);
    for (const float loss : found) EXPECT_TRUE(std::isfinite(loss)) << loss;
    RandomRun plain = run;
    plain.step.choices = {.micro_batch = run.step.choices.micro_batch};
    Rig other({write_step(plain.config, plain.step, cpu_device())});
    EXPECT_EQ(found, losses(other, plain));
  }
}

}  // namespace
}  // namespace ebb
