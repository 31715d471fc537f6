// Numbers in fewer bits: exact techniques stay exact whatever the storage, and the result is near
// that of fp32.
#include <gtest/gtest.h>

#include "base/threads.h"
#include "model_fixture.h"
#include "plan/search.h"
#include "schedule_fixture.h"
#include "step_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 5;

struct StorageCase {
  const char* name;
  Storage storage;
};

const StorageCase kCases[] = {
    {"bf16", {.activation = DType::bf16}},
    {"fp16", {.activation = DType::f16}},
    {"state", {.moments = Moments::coded, .ema = DType::bf16}},
    {"all", {DType::bf16, DType::bf16, Moments::coded, DType::bf16}},
};

Bits run_stored(const DitConfig& config, const StepSpec& spec, const Storage& storage,
                Choices choices = {}, Executor::Mode mode = Executor::Mode::normal) {
  choices.storage = storage;
  return run_with(config, spec, choices, mode);
}

TEST(StorageTypes, ExactTechniquesChangeNoBitWhateverIsStored) {
  const OneThread one_thread;
  Random random(21);
  for (const StorageCase& c : kCases) {
    SCOPED_TRACE(c.name);
    for (const ModelCase& m : model_cases()) {
      SCOPED_TRACE(m.name);
      const int depth = static_cast<int>(m.config.depth());
      for (const int64_t micro : {int64_t{2}, kBatch}) {
        const Choices plain{.micro_batch = micro};
        const Bits bits = run_stored(m.config, updating(0.05f, kBatch), c.storage, plain);
        Choices other = plain;
        other.schedule = random_schedule(depth, random);
        expect_same(bits, run_stored(m.config, updating(0.05f, kBatch), c.storage, other));
        other.layer_major = micro < kBatch;
        other.release = true;
        expect_same(bits, run_stored(m.config, updating(0.05f, kBatch), c.storage, other));
      }
    }
  }
}

TEST(StorageTypes, MicroBatchesAndThreadsChangeNoBitWhereGradientsAreFp32) {
  const OneThread one_thread;
  for (const DType type : {DType::bf16, DType::f16}) {
    const DitConfig config = uneven_config(Objective::ddpm);
    const Storage storage{.activation = type};
    const Bits whole = run_stored(config, updating(0.05f, kBatch), storage);
    for (const int64_t micro : {1, 2, 3}) {
      expect_same(whole,
                  run_stored(config, updating(0.05f, kBatch), storage, {.micro_batch = micro}));
    }
    set_team_threads(3);
    expect_same(whole, run_stored(config, updating(0.05f, kBatch), storage));
    set_team_threads(1);
  }
}

TEST(StorageTypes, DebugMemoryPasses) {
  const OneThread one_thread;
  Random random(22);
  const DitConfig config = uneven_config(Objective::ddpm);
  for (const StorageCase& c : kCases) {
    SCOPED_TRACE(c.name);
    Choices choices{.micro_batch = 2, .layer_major = true, .release = true};
    choices.schedule = random_schedule(3, random);
    const Bits plain = run_stored(config, updating(0.1f, kBatch), c.storage, choices);
    expect_same(plain, run_stored(config, updating(0.1f, kBatch), c.storage, choices,
                                  Executor::Mode::debug_memory));
  }
}

// A power of two on the loss comes off again without a trace.
TEST(StorageTypes, ALossScaleLeavesEveryBitOfAnFp32Step) {
  const OneThread one_thread;
  const DitConfig config = small_config();
  const auto run = [&](float scale) {
    Rig machine({write_step(config, updating(0.05f, kBatch), cpu_device())});
    machine.set_weights(config);
    machine.set_batch(config, kBatch);
    Scalars scalars = training_scalars(0);
    scalars.loss_scale = scale;
    machine.executor().run(scalars);
    return machine.residents();
  };
  const std::string plain = run(1);
  EXPECT_TRUE(run(1024) == plain);
  EXPECT_TRUE(run(0x1p-10f) == plain);
}

double relative_error(const Column& got, const Column& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

TEST(StorageTypes, GradientsAreNearThoseOfFp32) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const auto gradients = [&](DType type, float scale) {
      StepSpec spec = step_spec(kBatch, false);
      spec.choices.storage.activation = type;
      Rig machine({write_step(m.config, spec, cpu_device())});
      machine.set_weights(m.config);
      machine.set_batch(m.config, kBatch);
      Random random(11);
      machine.set(kBatchNoise,
                  random_column(kBatch * m.config.channels * m.config.pixels(), random));
      machine.set(kBatchTime, random_times(kBatch, m.config.objective, random));
      Scalars scalars;
      scalars.loss_scale = scale;
      machine.executor().run(scalars);
      Column all;
      for (const ParamSpec& p : parameters(m.config)) {
        if (!p.trained()) continue;
        for (const double g : machine.get("grad." + p.name)) all.push_back(g / scale);
      }
      return all;
    };
    const Column want = gradients(DType::f32, 1);
    EXPECT_LT(relative_error(gradients(DType::bf16, 1), want), 0.03);
    EXPECT_LT(relative_error(gradients(DType::f16, 256), want), 0.004);
    EXPECT_GT(relative_error(gradients(DType::bf16, 1), want), 1e-5) << "nothing was rounded";
  }
}

// ---- bytes --------------------------------------------------------------------------------------

int64_t at_peak(const Plan& plan, Purpose purpose) {
  return plan.ledger.purpose[static_cast<int>(purpose)];
}

Plan planned(const DitConfig& config, StepSpec spec, const Storage& storage) {
  spec.choices.storage = storage;
  return make_plans({write_step(config, spec, cpu_device())}).plans[0];
}

TEST(StorageTypes, TheStateTakesTheBytesThatItsTypesSay) {
  const DitConfig config = named_config("DiT-S/2");
  StepSpec spec = step_spec(2);
  const auto bytes = [&](const Storage& storage, Purpose purpose) {
    return static_cast<double>(at_peak(planned(config, spec, storage), purpose)) /
           static_cast<double>(parameter_count(config));
  };
  EXPECT_NEAR(bytes({}, Purpose::weight), 4, 0.01);
  EXPECT_NEAR(bytes({.activation = DType::bf16}, Purpose::weight), 4, 0.01);
  EXPECT_NEAR(bytes({}, Purpose::moment), 8, 0.05);
  EXPECT_NEAR(bytes({.moments = Moments::coded}, Purpose::moment), 2 + 8.0 / kMomentBlock, 0.05);
  EXPECT_NEAR(bytes({}, Purpose::ema), 4, 0.02);
  EXPECT_NEAR(bytes({.ema = DType::bf16}, Purpose::ema), 2, 0.05);
}

TEST(StorageTypes, WhatIsLossyIsUsedOnlyWhenItIsAllowed) {
  // Of a tiny model the plan itself takes more than what is stored.
  const DitConfig config = named_config("DiT-S/8");
  const StepSpec spec = step_spec(8);
  const auto candidates = [&](const Decisions& forced) {
    return step_candidates(config, spec, forced, middling_machine());
  };
  for (const Candidate& c : candidates({})) EXPECT_EQ(c.choices.storage, Storage{});
  const int64_t exact = candidates({}).back().total_bytes();
  int64_t least = exact;
  for (const char* word : {"bf16", "adam8", "ema16", "fp16"}) {
    Decisions forced;
    forced.allowed = {word};
    const auto found = candidates(forced);
    EXPECT_LT(found.back().total_bytes(), exact);
    least = std::min(least, found.back().total_bytes());
    for (size_t i = 1; i < found.size(); ++i) {
      EXPECT_LT(found[i].total_bytes(), found[i - 1].total_bytes());
    }
  }
  Decisions all;
  for (const AllowWord& word : allow_words()) all.allowed.insert(word.word);
  EXPECT_LT(candidates(all).back().total_bytes(), least);
  Decisions forced;
  forced.moments = Moments::coded;
  for (const Candidate& c : candidates(forced)) {
    EXPECT_EQ(c.choices.storage.moments, Moments::coded);
    EXPECT_EQ(c.choices.storage.activation, DType::f32);
  }
}

}  // namespace
}  // namespace ebb
