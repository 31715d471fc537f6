// Programs of several ranks: the bits of one rank alone, whatever their number, and no more bytes
// than the plan says.
#include "device_fixture.h"
#include "model/messages.h"
#include "rank_program_runs.h"

namespace ebb {
namespace {

TEST(RankPrograms, AnyNumberOfRanksHasTheBitsOfOne) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 7;  // shares differ
  for (const Objective objective : {Objective::ddpm, Objective::flow}) {
    const DitConfig config = uneven_config(objective);
    for (const float clip : {0.0f, 0.05f}) {
      const StepSpec spec = updating(clip, kBatch);
      const Bits alone = run_with(config, spec, {});
      for (const int ranks : {2, 3, 4, 7}) {
        for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
          SCOPED_TRACE(fmt::format("{} ranks, shard {}", ranks, static_cast<int>(shard)));
          Ranks(config, spec, {}, groups(ranks), shard).expect_same_as(alone);
        }
      }
    }
  }
}

TEST(RankPrograms, LayerByLayerInMicroBatchesAndRecomputedToo) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 8;
  const DitConfig config = small_config(Objective::flow);
  const StepSpec spec = updating(0.05f, kBatch);
  const Bits alone = run_with(config, spec, {});
  Choices layers{.micro_batch = 2, .layer_major = true};
  layers.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet{}));
  for (const int ranks : {2, 3}) {
    for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
      Ranks(config, spec, layers, groups(ranks), shard).expect_same_as(alone);
    }
  }
}

TEST(RankPrograms, EveryOptimizerAndModelGoesOverRanks) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    StepSpec spec = updating(0.05f, 3);
    spec.l1 = 0.1;
    Ranks(m.config, spec, {}, groups(3), Shard::grads).expect_same_as(run_with(m.config, spec, {}));
  }
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adafactor}) {
    const DitConfig config = small_config();
    StepSpec spec = updating(0.05f, 3);
    spec.optimizer = optimizer;
    Ranks(config, spec, {}, groups(3), Shard::grads).expect_same_as(run_with(config, spec, {}));
  }
}

// Stages that each have some of the blocks: weights, state and gradients of the others are not
// there at all.
TEST(RankPrograms, APipelineHasTheBitsOfOne) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 5;
  const auto expect_exact = [&](Objective objective, int stages, int64_t micro_batch, bool fed,
                                const Storage& storage) {
    SCOPED_TRACE(fmt::format("{} stages, micro-batches of {}", stages, micro_batch));
    DitConfig config = uneven_config(objective);
    while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
    StepSpec spec = updating(0.05f, kBatch);
    if (fed) spec.feeding = {true, DType::u8, true, 0};
    Choices choices{.micro_batch = micro_batch, .storage = storage};
    const Bits alone = run_with(config, spec, {.storage = storage});
    for (const StageOrder order : kStageOrders) {
      choices.stage_order = order;
      Ranks(config, spec, choices, pipeline(config, stages), Shard::off).expect_same_as(alone);
    }
  };
  expect_exact(Objective::ddpm, 2, 2, false, {});
  expect_exact(Objective::ddpm, 4, 1, false, {});
  expect_exact(Objective::flow, 3, 5, false, {});
  expect_exact(Objective::flow, 3, 1, true, {});
  Storage rounded;
  rounded.activation = DType::bf16;
  rounded.moments = Moments::coded;
  expect_exact(Objective::flow, 2, 2, true, rounded);
}

// What is added in a tree has the bits that its leaves say, whoever has them and however they are
// gone through.
TEST(RankPrograms, ATreeHasTheBitsOfItsLeaves) {
  const OneThread one_thread;
  DitConfig config = uneven_config(Objective::flow);
  config.qk_norm = QkNormKind::rms;  // gains, whose gradients are never put off
  while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
  StepSpec spec = updating(0.05f, 11);
  const Bits chain = run_with(config, spec, {});
  spec.leaves = 4;
  const Bits alone = run_with(config, spec, {});
  EXPECT_NE(chain.at("blocks.1.mlp.fc1.weight"), alone.at("blocks.1.mlp.fc1.weight"));
  const Choices one{.micro_batch = 1}, two{.micro_batch = 2};
  Choices layers{.micro_batch = 1, .layer_major = true};
  layers.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet{}));
  for (const Choices& choices : {one, two, layers}) {
    Ranks(config, spec, choices, groups(1), Shard::off).expect_same_as(alone);
    for (const int ranks : {2, 4}) {
      for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
        SCOPED_TRACE(fmt::format("{} ranks, shard {}", ranks, static_cast<int>(shard)));
        Ranks(config, spec, choices, groups(ranks), shard).expect_same_as(alone);
      }
    }
  }
  Choices late = one;
  late.stage_order = StageOrder::late;
  Ranks(config, spec, late, pipeline(config, 4), Shard::off).expect_same_as(alone);
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    for (Choices choices : {one, two}) {
      for (const StageOrder order : kStageOrders) {
        choices.stage_order = order;
        SCOPED_TRACE(fmt::format("2 x 2, shard {}, order {}", static_cast<int>(shard),
                                 static_cast<int>(order)));
        Ranks(config, spec, choices, pipeline(config, 2, 2), shard).expect_same_as(alone);
      }
    }
    Ranks(config, spec, two, pipeline(config, 3, 4), shard).expect_same_as(alone);
  }
}

// Each whole sum is used soon after it was made, and dies.
TEST(RankPrograms, ReleasedGradientsToo) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 8;
  const DitConfig config = uneven_config(Objective::ddpm);
  Choices layers{.micro_batch = 2, .layer_major = true, .release = true};
  layers.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet{}));
  for (const float clip : {0.0f, 0.05f}) {
    const StepSpec spec = updating(clip, kBatch);
    const Bits alone = run_with(config, spec, {});
    for (const Choices& choices : {Choices{.release = true}, layers}) {
      for (const int ranks : {2, 4}) {
        for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
          SCOPED_TRACE(fmt::format("{} ranks, shard {}", ranks, static_cast<int>(shard)));
          Choices away = choices;
          Ranks(config, spec, away, groups(ranks), shard).expect_same_as(alone);
          away.offload = to_disk(true, false, false);
          if (ranks == 2) Ranks(config, spec, away, groups(ranks), shard).expect_same_as(alone);
        }
      }
    }
  }
}

TEST(RankPrograms, ReleaseLeavesNoRankAllOfItsGradients) {
  DitConfig config = named_config("DiT-S/2");
  const auto arena = [&](bool release) {
    StepSpec spec = updating(0, 4);
    spec.choices.release = release;
    spec.choices.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet{}));
    int64_t most = 0;
    for (int r = 0; r < 2; ++r) {
      const Program program =
          write_step(config, placed(spec, groups(2), r, Shard::grads), cpu_device());
      most = std::max(most, make_plans({program}).arena_bytes);
    }
    return most;
  };
  const int64_t half = parameter_count(config) * 4 / 2;
  EXPECT_LT(arena(true), arena(false) - half / 2);
}

// Moments and averages beyond a lane, which each rank has of its own.
TEST(RankPrograms, StateOnDiskGoesOverRanks) {
  const OneThread one_thread;
  DitConfig config = uneven_config(Objective::flow);
  config.width = 32;
  while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
  StepSpec spec = updating(0.05f, 6);
  const Bits alone = run_with(config, spec, {});
  Choices away{.micro_batch = 3};
  away.offload = to_disk(true, false, true);
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    Ranks(config, spec, away, groups(2), shard).expect_same_as(alone);
  }
  away.offload.inputs = false;
  Ranks(config, spec, away, pipeline(config, 2), Shard::off).expect_same_as(alone);
  spec.leaves = 4;
  const Bits tree = run_with(config, spec, {});
  away.micro_batch = 1;
  Ranks(config, spec, away, pipeline(config, 2, 2), Shard::grads).expect_same_as(tree);
}

// What is on its way is written and read by others while ops run, and is left out of the proof; all
// else is proven as it is of one rank.
TEST(RankPrograms, DebugMemoryPassesWhileBytesAreOnTheirWay) {
  const OneThread one_thread;
  DitConfig config = uneven_config(Objective::flow);
  while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
  const auto expect_passes = [&](int leaves, const Choices& choices, const RankPlace& place,
                                 Shard shard) {
    StepSpec spec = updating(0.05f, 4);
    spec.leaves = leaves;
    const Ranks plain(config, spec, choices, place, shard, {}, 1);
    const Ranks proven(config, spec, choices, place, shard, {}, 1, Executor::Mode::debug_memory);
    for (int r = 0; r < place.ranks(); ++r) expect_same(plain.found(r), proven.found(r));
  };
  expect_passes(0, {.micro_batch = 1, .layer_major = true}, groups(2), Shard::weights);
  expect_passes(0, {.micro_batch = 2}, pipeline(config, 2), Shard::off);
  expect_passes(2, {.micro_batch = 1}, groups(2), Shard::grads);
  RankPlace parts;
  parts.tensor = 2;
  config.blocks = {{2, 20}, {3, 7}};
  expect_passes(0, {.micro_batch = 2}, parts, Shard::off);
}

// x goes from rank 0 to rank 1, and `meanwhile` happens on each of them while an op runs.
void run_with_x_on_its_way(Executor::Mode mode,
                           const std::function<void(int rank, Rig& machine)>& meanwhile) {
  ThreadRanks::run(2, [&](Peers& peers) {
    const int own = peers.rank(), other = 1 - own;
    Builder b("sends", cpu_device());
    Messages messages(b, 2);
    const Buf x = b.buffer("x", {30}, Purpose::data), y = b.buffer("y", {30}, Purpose::data);
    const Buf z = b.buffer("z", {30}), sum = b.buffer("sum", {30}), end = b.buffer("end", {30});
    b.input(x);
    b.input(y);
    const Message message{"x", x, other, kPartialSums};
    own == 0 ? messages.send(message) : messages.receive_begin(message);
    b.emit("z", Silu{30}, {y}, {z});
    own == 0 ? messages.wait_for_sends() : messages.receive_end(message);
    b.emit("sum", Add{30}, {x, z}, {sum});  // both are still wanted
    b.emit("end", Add{30}, {y, sum}, {end});
    Rig* self = nullptr;
    const LyingDevice device([&](const Call& call) {
      std::fill_n(call.write(0), 30, 1.0f);
      meanwhile(own, *self);
    });
    Rig machine({b.finish()}, mode, device);
    self = &machine;
    for (const char* name : {"x", "y"}) machine.set(name, Column(30, 2.0));
    machine.executor().exchange_with(peers);
    machine.executor().run({});
  });
}

// As a transport does that has a thread of its own.
TEST(RankPrograms, DebugMemoryLeavesAloneWhatIsOnItsWay) {
  const OneThread one_thread;
  run_with_x_on_its_way(Executor::Mode::debug_memory, [](int rank, Rig& machine) {
    float& x = machine.host("x")[3];
    if (rank == 1) x = 2.0f;
    EXPECT_EQ(x, 2.0f) << "what is sent is read while ops run";
  });
}

// A rank that changes what it has begun to send, or bytes that are nobody's business.
TEST(RankPrograms, DebugMemoryCatchesAChangeOfWhatIsOnItsWay) {
  const OneThread one_thread;
  for (const char* spoiled : {"x", "y"}) {
    const auto spoil = [&](int rank, Rig& machine) {
      if (rank == 0) machine.host(spoiled)[3] = 7;
    };
    EXPECT_NO_THROW(run_with_x_on_its_way(Executor::Mode::normal, spoil)) << spoiled;
    EXPECT_THROW(run_with_x_on_its_way(Executor::Mode::debug_memory, spoil), Bug) << spoiled;
  }
}

// Weights stay with all, the rest of the state with its owner: 4 + 12 / n bytes a parameter. With
// the weights too: 16 / n.
TEST(RankPrograms, StateLiesWithItsOwnerAlone) {
  const DitConfig config = named_config("DiT-S/2");
  const auto resident = [&](int ranks, Shard shard) {
    int64_t most = 0;
    for (int r = 0; r < ranks; ++r) {
      const Program program =
          write_step(config, placed(updating(1, 8), groups(ranks), r, shard), cpu_device());
      int64_t bytes = 0;
      for (const Buffer& b : program.buffers) bytes += b.resident ? b.bytes() : 0;
      most = std::max(most, bytes);
    }
    return static_cast<double>(most) / static_cast<double>(parameter_count(config));
  };
  EXPECT_NEAR(resident(1, Shard::off), 16, 0.1);
  EXPECT_NEAR(resident(4, Shard::off), 16, 0.1);
  EXPECT_NEAR(resident(4, Shard::grads), 4 + 12.0 / 4, 0.2);
  EXPECT_NEAR(resident(8, Shard::grads), 4 + 12.0 / 8, 0.3);
  EXPECT_NEAR(resident(8, Shard::weights), 16.0 / 8, 0.4);
}

TEST(RankShares, AreInOrderAndAsEqualAsCanBe) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int64_t batch : {8, 9, 31}) {
      int64_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        const Share share = RankPlace{ranks, 1, r}.share(batch);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.count, batch / ranks);
        EXPECT_LE(share.count, (batch + ranks - 1) / ranks);
        next += share.count;
      }
      EXPECT_EQ(next, batch);
    }
  }
}

}  // namespace
}  // namespace ebb
