// Steps that take their samples while they run: the same bits as from a batch that the host wrote,
// in every way to carry them out, and only the bytes that the ways need.
#include <gtest/gtest.h>

#include "plan/planned_run.h"
#include "step_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 5;

DitConfig fed_config() {
  DitConfig config = small_config(Objective::ddpm);
  set_blocks(config, 3, 2);
  return config;
}

StepSpec fed_spec(DType type, bool mirror) {
  StepSpec spec = updating(1, kBatch);
  spec.feeding = {true, type, mirror, 1000};
  return spec;
}

// What the feed brings, in the host's own batch.
Bits run_from_host(const DitConfig& config, bool mirror) {
  const StepSpec spec = updating(1, kBatch);
  Rig rig({write_step(config, spec, cpu_device())});
  rig.set_weights(config);
  const int64_t n = config.channels * config.pixels();
  const int64_t S = config.image_size;
  for (int64_t k = 0; k < 2; ++k) {
    const Scalars scalars = training_scalars(k);
    Column x(kBatch * n), y(kBatch);
    for (int64_t b = 0; b < kBatch; ++b) {
      const bool turned = mirror && is_mirrored(scalars.seed, scalars.step * kBatch + b);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t from = turned ? i - i % S + S - 1 - i % S : i;
        x[b * n + i] = static_cast<float>(MadeFeed::pixel(b, from)) / 127.5f - 1;
      }
      y[b] = MadeFeed::label(b, config.classes);
    }
    rig.set(kBatchX, x);
    rig.set(kBatchY, y);
    rig.executor().run(scalars);
  }
  return results(rig);
}

std::vector<Choices> ways() {
  Choices layers{.micro_batch = 2, .layer_major = true};
  Choices released = layers;
  released.release = true;
  return {{}, {.micro_batch = 2}, {.micro_batch = 1}, layers, released, {.release = true}};
}

TEST(FedSteps, HaveTheBitsOfABatchThatTheHostWrote) {
  const OneThread one_thread;
  const DitConfig config = fed_config();
  for (const bool mirror : {false, true}) {
    const Bits wanted = run_from_host(config, mirror);
    for (const DType type : {DType::u8, DType::f32}) {
      for (const Choices& way : ways()) {
        SCOPED_TRACE(testing::Message() << dtype_name(type) << ", mirror " << mirror
                                        << ", micro-batch " << way.micro_batch << ", layer-major "
                                        << way.layer_major << ", release " << way.release);
        Bits found = run_with(config, fed_spec(type, mirror), way);
        found.erase(kLoaderMemory);
        expect_same(wanted, found);
      }
    }
  }
}

TEST(FedSteps, ProveWhatTheirOpsDeclare) {
  const OneThread one_thread;
  const DitConfig config = fed_config();
  const StepSpec spec = fed_spec(DType::u8, true);
  expect_same(run_with(config, spec, {.micro_batch = 2}),
              run_with(config, spec, {.micro_batch = 2}, Executor::Mode::debug_memory));
}

TEST(FedSteps, AStepThatNobodyFeedsIsABug) {
  const OneThread one_thread;
  const DitConfig config = fed_config();
  Rig rig({write_step(config, fed_spec(DType::u8, false), cpu_device())});
  EXPECT_THROW(rig.executor().run(training_scalars(0)), Bug);
}

// Samples wait as they are stored: all of a batch where the step goes layer by layer, else those of
// a micro-batch.
TEST(FedSteps, HoldSamplesAsTheyAreStored) {
  const DitConfig config = fed_config();
  const int64_t sample = config.channels * config.pixels();
  const auto stored = [&](const Choices& way) {
    StepSpec spec = fed_spec(DType::u8, false);
    spec.batch = 6;
    spec.choices = way;
    const Program program = write_step(config, spec, cpu_device());
    return program.buffer(program.at(kBatchStored)).bytes();
  };
  EXPECT_EQ(stored({}), 6 * sample);
  EXPECT_EQ(stored({.micro_batch = 2}), 2 * sample);
  EXPECT_EQ(stored({.micro_batch = 2, .layer_major = true}), 6 * sample);
}

}  // namespace
}  // namespace ebb
