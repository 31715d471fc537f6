// Samples that one of several ranks cannot read: the step ends on all of them, with nothing done.
#include <system_error>

#include "comm/agreement.h"
#include "data/order.h"
#include "rank_fixture.h"
#include "train/trainer.h"

namespace ebb {
namespace {

struct LayoutCase {
  const char* name;
  RankPlace place;
  Shard shard;
  int leaves = 0;
  int64_t micro_batch = 0;
};

class RankData : public RankRuns {
 protected:
  static constexpr int64_t kGood = 2;  // steps
  // The sample of the next step that stands there in its batch.
  int64_t sample_at(int64_t place) const { return Order(3, kSamples).at(kGood * kBatch + place); }

  void expect_nothing_done(const LayoutCase& layout, const Source& source, bool flip) {
    const StateKind kind = state_kinds()[0];
    const auto options_of = [&](const RankPlace& place) {
      TrainOptions o = options(kind, place, place.alone() ? Shard::off : layout.shard);
      o.flip = flip;
      o.step.leaves = layout.leaves;
      o.step.choices.micro_batch = layout.micro_batch;
      return o;
    };
    const auto trained = [&](const RankPlace& place, const auto& each) {
      ThreadRanks::run(place.ranks(), [&](Peers& peers) {
        RankPlace own = place;
        own.rank = peers.rank();
        const TrainOptions o = options_of(own);
        const PlannedRun plan = planned(o, source);
        TrainingRun run(o, source, plan, machine_, own.alone() ? nullptr : &peers);
        run.initialise();
        for (int64_t i = 0; i < kGood; ++i) run.step();
        each(run, peers.rank());
      });
    };
    trained({}, [&](TrainingRun& run, int) { run.save(at("alone")); });
    const RankPlace& place = layout.place;
    trained(place, [&](TrainingRun& run, int rank) {
      SCOPED_TRACE(fmt::format("{}, rank {}", layout.name, rank));
      try {
        run.step();
        ADD_FAILURE() << "a step without all of its samples";
      } catch (const SharedError& e) {
        EXPECT_EQ(e.code(), Exit::data);
        EXPECT_EQ(std::string(e.what()),
                  place.data > 1 ? "rank 2: photo 17 cannot be read" : "photo 17 cannot be read");
      }
      EXPECT_TRUE(run.sound());
      EXPECT_EQ(run.done(), kGood);
      run.save(at("together"));
    });
    EXPECT_TRUE(bytes_of(at("together")) == bytes_of(at("alone"))) << layout.name;
  }
};

TEST_F(RankData, WhatOneRankCannotReadEndsTheStepOfAllWithNothingDone) {
  const std::vector<float> values(pixels_.begin(), pixels_.end());
  const auto numbers = value_source(values, labels_, 8, 3);
  for (const LayoutCase& layout : {LayoutCase{"a chain", {3}, Shard::grads},
                                   LayoutCase{"stages", {1, 2, 0, {1}}, Shard::off, 0, 4},
                                   LayoutCase{"both", {2, 2, 0, {1}}, Shard::weights, 4, 1}}) {
    const bool in_groups = layout.place.data > 1;
    // In the last group's share where there are several; in the midst of it.
    const int64_t place = in_groups ? kBatch - 2 : 3;
    expect_nothing_done(layout, OneMissing(*source_, sample_at(place)), true);
    if (layout.shard == Shard::grads || !in_groups) {
      expect_nothing_done(layout, OneMissing(*numbers, sample_at(place)), false);
    }
  }
}

// Its reader has gone away.
class BrokenPipe final : public RunSink {
 public:
  void step(const StepRecord& record) override {
    if (record.step == 2) {
      throw std::system_error(EPIPE, std::generic_category(), "stdout");
    }
  }
};

TEST_F(RankData, WhatTheFirstCannotSayEndsAllWithTheStateSaved) {
  std::vector<std::string> said;
  const RunControl control{[] { return false; }, [](bool) {}};
  const auto train_there = [&](Peers& peers) {
    TrainOptions o = options(state_kinds()[0], {3, 1, peers.rank()}, Shard::grads);
    o.out = at("run");
    o.steps = 9;
    BrokenPipe sink;
    std::vector<RunSink*> sinks;
    if (peers.rank() == 0) sinks.push_back(&sink);
    ebb::train(o, *source_, planned(o), machine_, sinks, control, &peers);
  };
  EXPECT_THROW(ThreadRanks::run(3, train_there, &said), SharedError);
  for (const std::string& each : said) {
    EXPECT_NE(each.find("stdout: Broken pipe; the state after step 3 is saved in"),
              std::string::npos)
        << each;
  }
  EXPECT_TRUE(std::filesystem::exists(checkpoint_path(at("run"), 3)));  // asked before it was told
}

}  // namespace
}  // namespace ebb
