// Ranks with parts of every block that also cut what lies between its products, each with the rows
// of its own samples: the bits of those that have all rows, on every rank.
#include <optional>

#include "base/threads.h"
#include "plan/stages.h"
#include "tensor_parts.h"

namespace ebb {
namespace {

Choices cut(Choices choices = {}) {
  choices.cut_tokens = true;
  return choices;
}

// Steps in both ways: whole, and cut.
void expect_same_bits(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                      const RankPlace& place, int steps = 2, Shard shard = Shard::off) {
  const Parts whole(config, spec, choices, place, steps, shard);
  Parts(config, spec, cut(choices), place, steps, shard).expect_same_bits(whole);
}

// Shares of samples that are equal and such that are not; the first moment after one step is the
// gradient, but for a factor.
TEST(TensorTokens, AStepIsThatOfOneRankButForRoundingAndHasTheBitsOfWholeTokens) {
  const OneThread one_thread;
  for (const auto& [ranks, heads, batch] :
       {std::tuple{2, 2, 2}, {2, 3, 5}, {3, 3, 4}, {4, 4, 4}, {4, 6, 7}}) {
    SCOPED_TRACE(fmt::format("{} heads and {} samples on {} ranks", heads, batch, ranks));
    const DitConfig config = wide_config(heads);
    const StepSpec spec = smooth(0.05f, batch);
    const Parts made(config, spec, cut(), parts(ranks), 1);
    made.expect_close({config, spec, {}, parts(1), 1}, kClose);
    made.expect_same_bits({config, spec, {}, parts(ranks), 1});
  }
}

// However it goes through the blocks: what is not kept is gathered again, or its sum made again. A
// micro-batch with fewer samples than there are ranks goes whole.
TEST(TensorTokens, EveryWayThroughTheBlocksLeavesTheSameBits) {
  const OneThread one_thread;
  const DitConfig config = wide_config(4, Objective::ddpm, QkNormKind::layer);
  const StepSpec spec = smooth(0.05f, 7);
  for (const int ranks : {2, 3}) {
    const Parts whole(config, spec, {}, parts(ranks), 2);
    std::vector<Choices> ways;
    for (const char* dropped : {"all", "attn-in+mlp-in", "proj+fc2", "mod+x1"}) {
      const std::vector<KeepSet> keep(3, KeepSet::all_but(dropped, "a test"));
      for (const Choices& way :
           {Choices{}, Choices{.micro_batch = 3}, Choices{.micro_batch = 4, .layer_major = true}}) {
        ways.push_back(way);
        ways.back().schedule = plain_schedule(keep);
      }
    }
    for (const Choices& way : ways) {
      SCOPED_TRACE(fmt::format("{} ranks, micro-batches of {}, without {}", ranks, way.micro_batch,
                               way.schedule[0].keep.recomputed()));
      Parts(config, spec, cut(way), parts(ranks), 2).expect_same_bits(whole);
    }
  }
}

TEST(TensorTokens, ThreadsChangeNoBit) {
  const DitConfig config = wide_config(4);
  const StepSpec spec = smooth(0.05f, 5);
  std::optional<Parts> alone;
  {
    const OneThread one_thread;
    alone.emplace(config, spec, cut(), parts(2), 2);
  }
  const int before = team_threads();
  set_team_threads(3);
  Parts(config, spec, cut(), parts(2), 2).expect_same_bits(*alone);
  set_team_threads(before);
}

TEST(TensorTokens, HalfBlocksFeedsAndRoundedStateToo) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::flow);
  config.classes = 0;
  config.blocks = {{0, 20}, {2, 16}, {3, 0}};
  StepSpec spec = smooth(0.05f, 5);
  spec.group_lasso = 1e-3;
  spec.feeding = {true, DType::u8, true, 0};
  Choices choices{.micro_batch = 2};
  choices.storage.moments = Moments::coded;
  choices.storage.ema = DType::bf16;
  choices.offload = to_disk(true, false, true);
  expect_same_bits(config, spec, choices, parts(2));
}

// Stages hand on the rows that each has to the rank that has the same; groups know nothing of it.
TEST(TensorTokens, WithDataAndPipeToo) {
  const OneThread one_thread;
  DitConfig config = wide_config(4, Objective::ddpm, QkNormKind::rms);
  config.blocks.push_back({5, 31});
  StepSpec spec = smooth(0.05f, 9);
  const Choices layers{.micro_batch = 2, .layer_major = true};
  expect_same_bits(config, spec, layers, parts(2, 2), 2, Shard::weights);
  for (const StageOrder order : kStageOrders) {
    const Choices choices{.micro_batch = 2, .stage_order = order};
    expect_same_bits(config, spec, choices, parts(2, 1, 3, config));
  }
  spec.leaves = 4;
  expect_same_bits(config, spec, {.micro_batch = 2}, parts(2, 2, 2, config), 2, Shard::grads);
}

// The step of the last rank, which has most, of DiT-S/2.
Program large_step(int ranks, int64_t batch, const Choices& choices) {
  StepSpec spec = placed(updating(1, batch), parts(ranks), ranks - 1, Shard::off);
  spec.choices = choices;
  return write_step(named_config("DiT-S/2"), spec, cpu_device());
}

// 6 of 6 + 12 / T are 2 + 4 / T when all is kept, and 4 / T, but for what is on its way, when what
// products take is gathered again.
TEST(TensorTokens, ActivationsFallAndWhatIsSentDoesNotGrow) {
  const auto most = [](const Program& program) {
    const LiveBytes live(program, {}, [](const Buffer& b) {
      return b.purpose == Purpose::activation || b.purpose == Purpose::exchange;
    });
    return static_cast<double>(live.most(0, static_cast<int>(program.ops.size())));
  };
  const auto sent = [](const Program& program) {
    double bytes = 0;
    for (const Op& op : program.ops) {
      const auto* exchange = std::get_if<Exchange>(&op.params);
      if (exchange == nullptr || !exchange->sends() || !exchange->begins()) continue;
      bytes += static_cast<double>(exchange->bytes());
    }
    return bytes;
  };
  Choices again;
  again.schedule =
      plain_schedule(std::vector<KeepSet>(12, KeepSet::all_but("attn-in+mlp-in", "a test")));
  for (const int64_t ranks : {2, 4}) {
    const auto T = static_cast<double>(ranks);
    const Program whole = large_step(ranks, 8, {}), kept = large_step(ranks, 8, cut());
    EXPECT_NEAR(most(kept) / most(whole), (2 + 16 / T) / (6 + 12 / T), 0.02);
    EXPECT_NEAR(most(large_step(ranks, 8, cut(again))) / most(whole), 16 / T / (6 + 12 / T), 0.08);
    EXPECT_LE(sent(kept), 1.05 * sent(whole));
  }
}

}  // namespace
}  // namespace ebb
