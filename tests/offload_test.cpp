// What is kept in a file: the same bits, in less memory.
#include "program/offload.h"

#include <gtest/gtest.h>

#include "sample/draw.h"
#include "schedule_fixture.h"
#include "step_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 5;

std::vector<Offload> kinds(bool release) {
  std::vector<Offload> all = {to_disk(false, false, true), to_disk(true, false, false),
                              to_disk(true, false, true)};
  if (release) {
    all.push_back(to_disk(true, true, false));
    all.push_back(to_disk(true, true, true));
  }
  return all;
}

TEST(Offload, LeavesTheBitsOfAStepInMemory) {
  const OneThread one_thread;
  Random random(21);
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const int depth = static_cast<int>(m.config.depth());
    for (const bool release : {false, true}) {
      for (const int64_t micro : {int64_t{2}, kBatch}) {
        const StepSpec spec = updating(micro == 2 ? 0.05f : 0.0f, kBatch);
        Choices c{.micro_batch = micro, .layer_major = release && micro < kBatch};
        c.release = release;
        c.schedule = random_schedule(depth, random);
        const Bits plain = run_with(m.config, spec, c);
        for (const Offload& offload : kinds(release)) {
          SCOPED_TRACE(testing::Message()
                       << release << micro << offload.state << offload.weights << offload.inputs);
          c.offload = offload;
          expect_same(plain, run_with(m.config, spec, c));
        }
      }
    }
  }
}

TEST(Offload, GoesWithEveryStorage) {
  const OneThread one_thread;
  const DitConfig config = uneven_config(Objective::ddpm);
  for (const Storage& storage : {Storage{DType::bf16, DType::bf16, Moments::coded, DType::bf16},
                                 Storage{DType::f16, DType::f32, Moments::f32, DType::f32}}) {
    Choices c{.micro_batch = 2, .layer_major = true, .release = true};
    c.storage = storage;
    const Bits plain = run_with(config, updating(0, kBatch), c);
    c.offload = to_disk(true, true, true);
    expect_same(plain, run_with(config, updating(0, kBatch), c));
  }
}

TEST(Offload, DebugMemoryPasses) {
  const OneThread one_thread;
  const DitConfig config = uneven_config(Objective::ddpm);
  Choices c{.micro_batch = 3, .layer_major = true, .release = true};
  c.offload = to_disk(true, true, true);
  expect_same(run_with(config, updating(0, kBatch), c),
              run_with(config, updating(0, kBatch), c, Executor::Mode::debug_memory));
}

// Ahead of its visit, and beside the ops of the stage before: not right before it.
TEST(Offload, FetchesAStageAhead) {
  DitConfig config;
  config.width = 64;
  config.head_width = 32;
  set_blocks(config, 4, 2);
  StepSpec spec = updating(0, 4);
  spec.choices.release = true;
  spec.choices.offload = to_disk(true, true, false);
  const Program program = write_step(config, spec, cpu_device());
  std::map<std::string, int> begun;
  int transfers = 0, ahead = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const auto* transfer = std::get_if<Transfer>(&program.ops[i].params);
    if (transfer == nullptr || !transfer->fetches()) continue;
    const Buf memory = transfer->begins() ? program.ops[i].writes[0] : program.ops[i].updates[0];
    if (transfer->begins()) {
      begun[program.buffer(memory).name] = static_cast<int>(i);
      continue;
    }
    ++transfers;
    double flops = 0;
    for (size_t j = begun.at(program.buffer(memory).name); j < i; ++j) {
      flops += program.ops[j].flops();
    }
    ahead += flops > program.flops() / 100 ? 1 : 0;
  }
  EXPECT_GT(transfers, 50);
  EXPECT_GT(ahead, transfers * 3 / 4);  // the embedding has next to nothing before it
}

TEST(Offload, TakesLittleMoreThanTwoLayersOfAll) {
  DitConfig config;
  config.width = 64;
  config.head_width = 32;
  set_blocks(config, 24, 2);
  StepSpec spec = updating(0, 1);
  spec.choices.release = true;
  spec.choices.schedule = plain_schedule(std::vector<KeepSet>(config.depth()));
  const PlanSet plain = make_plans({write_step(config, spec, cpu_device())});
  spec.choices.offload = to_disk(true, true, true);
  const PlanSet away = make_plans({write_step(config, spec, cpu_device())});
  EXPECT_EQ(plain.total_away_bytes(), 0);
  EXPECT_GT(away.total_away_bytes(), plain.plans[0].resident_bytes * 9 / 10);
  EXPECT_LT(away.arena_bytes - kDiskMemory, plain.arena_bytes / 3);
}

// Of a late update, too, no more of the state is in memory than what a few tensors have.
TEST(Offload, ALateUpdateVisitsTensorByTensor) {
  DitConfig config;
  config.width = 64;
  config.head_width = 32;
  set_blocks(config, 24, 2);
  StepSpec spec = updating(1, 1);
  spec.choices.schedule = plain_schedule(std::vector<KeepSet>(config.depth()));
  const PlanSet plain = make_plans({write_step(config, spec, cpu_device())});
  spec.choices.offload = to_disk(true, false, false);
  const PlanSet away = make_plans({write_step(config, spec, cpu_device())});
  EXPECT_GT(away.total_away_bytes(), plain.plans[0].resident_bytes * 7 / 10);
  const int64_t all = parameter_count(config) * 4;  // of the weights, and of the gradients
  EXPECT_LT(away.arena_bytes - kDiskMemory, 2 * all + all / 4);
}

TEST(Offload, PicturesAreTheSame) {
  const OneThread one_thread;
  const DitConfig config = uneven_config(Objective::flow);
  const auto picture = [&](const Offload& offload) {
    StepSpec step = updating(0, 2);
    step.choices = {.micro_batch = 2, .release = true};
    step.choices.offload = offload;
    SamplerSpec sampler;
    sampler.steps = 3;
    sampler.batch = 2;
    sampler.offload = offload;
    std::vector<Program> programs;
    programs.push_back(write_step(config, step, cpu_device()));
    for (Program& p : sampler_programs(config, sampler, cpu_device())) {
      programs.push_back(std::move(p));
    }
    Rig machine(std::move(programs));
    machine.set_weights(config);
    Drawer drawer(machine.plans(), sampler, config, cpu_device(), machine.memory());
    std::vector<float> values;
    drawer.draw(
        3, [](int64_t place) { return static_cast<int32_t>(place % 2); }, 5,
        [&](int64_t, int64_t n, const float* from) {
          values.insert(values.end(), from, from + n * config.channels * config.pixels());
        });
    return values;
  };
  EXPECT_EQ(picture({}), picture(to_disk(true, true, true)));
}

}  // namespace
}  // namespace ebb
