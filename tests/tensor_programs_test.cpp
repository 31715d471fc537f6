// Programs of ranks that each have a part of every block: one rank's numbers but for rounding, the
// same bits on all that have the same, and no more bytes than the plan says.
#include "tensor_parts.h"

namespace ebb {
namespace {

// The first moment after one step is the gradient, but for a factor.
TEST(TensorPrograms, AStepIsThatOfOneRankButForRounding) {
  const OneThread one_thread;
  for (const auto& [ranks, heads] : {std::pair{2, 2}, {2, 3}, {4, 4}, {4, 6}}) {
    for (const float clip : {0.0f, 0.05f}) {
      SCOPED_TRACE(fmt::format("{} heads on {} ranks, clip {}", heads, ranks, clip));
      const DitConfig config = wide_config(heads);
      const StepSpec spec = smooth(clip, 5);
      const Parts alone(config, spec, {}, parts(1), 1);
      Parts(config, spec, {}, parts(ranks), 1).expect_close(alone, kClose);
    }
  }
}

// However it goes through them, whatever the blocks have.
TEST(TensorPrograms, EveryWayThroughTheBlocksIs) {
  const OneThread one_thread;
  Choices recomputed;
  recomputed.schedule = plain_schedule(std::vector<KeepSet>(3, KeepSet{}));
  Choices layers{.micro_batch = 2, .layer_major = true};
  Choices layers_again = layers;
  layers_again.schedule = recomputed.schedule;
  for (const QkNormKind qk_norm : {QkNormKind::layer, QkNormKind::rms}) {
    for (const Objective objective : {Objective::ddpm, Objective::flow}) {
      const DitConfig config = wide_config(4, objective, qk_norm);
      const StepSpec spec = smooth(0.05f, 5);
      const Parts alone(config, spec, {}, parts(1), 2);
      for (const Choices& choices :
           {Choices{}, Choices{.micro_batch = 2}, recomputed, layers, layers_again}) {
        SCOPED_TRACE(fmt::format("micro-batches of {}, by layers {}", choices.micro_batch,
                                 choices.layer_major));
        Parts(config, spec, choices, parts(2), 2).expect_close(alone, kClose);
      }
      Parts(config, spec, layers, parts(4), 2).expect_close(alone, kClose);
    }
  }
}

TEST(TensorPrograms, HalfBlocksAndOtherOptimizersToo) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::flow);
  config.classes = 0;
  config.blocks = {{0, 20}, {2, 16}, {3, 0}};
  StepSpec spec = smooth(0.05f, 3);
  spec.l1 = 1e-3;
  Parts(config, spec, {}, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
  spec.group_lasso = 1e-3;
  Parts(config, spec, {}, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
}

// Samples come to the first of the ranks that see the same, and from there to all.
TEST(TensorPrograms, SamplesOfAFeedAreTakenOnce) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::flow);
  StepSpec spec = smooth(0.05f, 5);
  spec.feeding = {true, DType::u8, true, 0};
  const Parts alone(config, spec, {}, parts(1), 2);
  const Choices layers{.micro_batch = 2, .layer_major = true};
  for (const Choices& choices : {Choices{}, Choices{.micro_batch = 2}, layers}) {
    Parts(config, spec, choices, parts(2), 2).expect_close(alone, kClose);
  }
  const Choices two{.micro_batch = 2};
  Parts(config, spec, two, parts(2, 1, 3, config), 2).expect_close(alone, kClose);
  const Program second = write_step(config, placed(spec, parts(2), 1, Shard::off), cpu_device());
  EXPECT_TRUE(std::none_of(second.ops.begin(), second.ops.end(), [](const Op& op) {
    return std::holds_alternative<TakeSamples>(op.params);
  }));
}

// Groups and stages besides.
TEST(TensorPrograms, WithDataAndPipeToo) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::ddpm, QkNormKind::layer);
  config.blocks.push_back({5, 31});
  StepSpec spec = smooth(0.05f, 8);
  const Parts alone(config, spec, {}, parts(1), 2);
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    SCOPED_TRACE(fmt::format("shard {}", static_cast<int>(shard)));
    Parts(config, spec, {}, parts(2, 3), 2, shard).expect_close(alone, kClose);
    const Choices layers{.micro_batch = 1, .layer_major = true};
    Parts(config, spec, layers, parts(2, 2), 2, shard).expect_close(alone, kClose);
  }
  for (const StageOrder order : kStageOrders) {
    const Choices choices{.micro_batch = 2, .stage_order = order};
    Parts(config, spec, choices, parts(2, 1, 2, config), 2).expect_close(alone, kClose);
    Parts(config, spec, choices, parts(4, 1, 3, config), 2).expect_close(alone, kClose);
  }
  spec.leaves = 4;
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    SCOPED_TRACE(fmt::format("tree, shard {}", static_cast<int>(shard)));
    const Choices choices{.micro_batch = 1};
    Parts(config, spec, choices, parts(2, 2), 2, shard).expect_close(alone, kClose);
    Parts(config, spec, choices, parts(2, 2, 2, config), 2, shard).expect_close(alone, kClose);
  }
}

// Whatever a group's ranks have whole stays the same on all of them, in 8 bits and rounded at
// random, too.
TEST(TensorPrograms, RoundedStateGoesWithParts) {
  const OneThread one_thread;
  const DitConfig config = wide_config(4);
  StepSpec spec = smooth(0.05f, 3);
  Choices choices;
  choices.storage.moments = Moments::coded;
  choices.storage.ema = DType::bf16;
  const Parts alone(config, spec, choices, parts(1), 3);
  Parts(config, spec, choices, parts(2), 3).expect_close(alone, 0.05);
  choices.storage = {.label_rows = 4};
  Parts(config, spec, choices, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
  choices.storage = {};
  choices.offload = to_disk(true, false, true);
  Parts(config, spec, choices, parts(2), 2).expect_close({config, spec, {}, parts(1), 2}, kClose);
}

TEST(TensorPrograms, PartsOfATensorAreRoundedAtRandomEachInItsOwnWay) {
  const DitConfig config = wide_config(4);
  StepSpec spec = updating(1, 2);
  spec.choices.storage.ema = DType::bf16;
  const auto keys = [&](int rank, const std::string& layer) {
    std::set<uint32_t> all;
    StepSpec own = placed(spec, parts(4), rank, Shard::off);
    own.choices.storage = spec.choices.storage;
    for (const Op& op : write_step(config, own, cpu_device()).ops) {
      const auto* adam = std::get_if<AdamW>(&op.params);
      if (adam != nullptr && op.name == "update." + layer) all.insert(adam->tensor);
    }
    return all;
  };
  std::set<uint32_t> of_parts;
  for (int rank = 0; rank < 4; ++rank) {
    of_parts.merge(keys(rank, "blocks.1.mlp.fc1.weight"));
    EXPECT_EQ(keys(rank, "t_embedder.mlp.0.weight"), keys(0, "t_embedder.mlp.0.weight"));
  }
  EXPECT_EQ(of_parts.size(), 4u);
}

// Every number of a tensor is in one part, and parts are as heavy as each other.
TEST(TensorPrograms, PartsOfABlockAreAllOfItAndWeighAboutTheSame) {
  for (const char* name : {"DiT-S/2", "DiT-B/2", "DiT-XL/2"}) {
    const DitConfig config = named_config(name);
    for (const int ranks : {2, 3, 4, 5}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", name, ranks));
      std::map<std::string, int64_t> counts;
      std::vector<double> weights;
      for (int r = 0; r < ranks; ++r) {
        RankPlace place = parts(ranks);
        place.rank = r;
        double all = 0;
        for (const ParamSpec& spec : sliced_parameters(config, place)) {
          if (!spec.slice.any()) continue;
          counts[spec.name] += spec.count();
          all += static_cast<double>(spec.count());
        }
        weights.push_back(all);
      }
      for (const ParamSpec& spec : parameters(config)) {
        if (counts.contains(spec.name)) {
          EXPECT_EQ(counts[spec.name], spec.count()) << spec.name;
        }
      }
      const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
      EXPECT_LE(*most, 1.01 * *least);
    }
  }
}

// Of weights, gradients, moments and average.
TEST(TensorPrograms, EachRankHasItsPartOfTheState) {
  const DitConfig config = named_config("DiT-S/2");
  const auto state = [&](int ranks) {
    int64_t most = 0;
    for (int r = 0; r < ranks; ++r) {
      const Program program =
          write_step(config, placed(updating(1, 2), parts(ranks), r, Shard::off), cpu_device());
      int64_t bytes = 0;
      for (const Buffer& b : program.buffers) {
        bytes += b.resident || b.purpose == Purpose::gradient ? b.bytes() : 0;
      }
      most = std::max(most, bytes);
    }
    return static_cast<double>(most);
  };
  const double one = state(1);
  EXPECT_NEAR(one, 20.0 * static_cast<double>(parameter_count(config)), one * 0.01);
  EXPECT_LE(state(2) / one, 0.52);
  EXPECT_LE(state(4) / one, 0.28);
}

}  // namespace
}  // namespace ebb
