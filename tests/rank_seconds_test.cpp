// Where the time of ranks goes, and how they come to agree on it.
#include "train/rank_seconds.h"

#include "rank_fixture.h"
#include "train/stop_together.h"

namespace ebb {
namespace {

using namespace std::chrono_literals;

using RankStepTimes = RankRuns;

TEST_F(RankStepTimes, ARankThatIsLateIsWaitedFor) {
  on_ranks(state_kinds()[0], 2, Shard::off, [](TrainingRun& run, Peers& peers) {
    run.initialise();
    run.step();
    if (peers.rank() == 1) std::this_thread::sleep_for(300ms);
    const StepRecord record = run.step();
    const RankSeconds& seconds = run.step_seconds();
    EXPECT_NEAR(seconds.computing + seconds.waiting + seconds.exchanging, record.seconds, 1e-9);
    EXPECT_GT(seconds.computing, 0);
    constexpr double kMost = 0.15;
    EXPECT_EQ(seconds.waiting > kMost, peers.rank() == 0) << seconds.waiting;
  });
}

TEST(RankSeconds, AllAreAskedWhetherToStopAndTheFirstHearsTheirTimes) {
  for (const int who : {-1, 0, 2}) {
    ThreadRanks::run(3, [&](Peers& peers) {
      bool asked = false;
      RunControl control;
      control.stop = [&] { return asked; };
      StopTogether stop(control, &peers);
      EXPECT_FALSE(stop.ask());
      asked = peers.rank() == who;
      std::vector<RankSeconds> ranks;
      stop.ask_after_step({1.0 + peers.rank(), 0.5, 0.25}, ranks);
      EXPECT_EQ(stop.ask(), who >= 0);
      EXPECT_EQ(stop.ask(), who >= 0);
      ASSERT_EQ(ranks.size(), peers.rank() == 0 ? 3u : 0u);
      for (size_t r = 0; r < ranks.size(); ++r) {
        EXPECT_EQ(ranks[r].computing, 1.0 + static_cast<double>(r));
        EXPECT_EQ(ranks[r].exchanging, 0.25);
      }
    });
  }
}

// One that comes while a checkpoint is written: nobody takes another step.
TEST(RankSeconds, WhatTakesAWhileIsFollowedByTheQuestion) {
  ThreadRanks::run(2, [&](Peers& peers) {
    bool asked = false;
    RunControl control;
    control.stop = [&] { return asked; };
    StopTogether stop(control, &peers);
    std::vector<RankSeconds> ranks;
    stop.ask_after_step({}, ranks);
    stop.pass_time();
    asked = peers.rank() == 1;
    EXPECT_TRUE(stop.ask());
  });
}

TEST(RankSeconds, TheSlowestComputesLongestAndSharesAreOfTheWholeTime) {
  RankMeans means;
  for (int step = 0; step < 4; ++step) means.add({{0.1, 0.3, 0}, {0.3, 0.0, 0.3}});
  const std::vector<std::string> lines = rank_lines(means.means());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "ranks: 40 % of the time computing, 30 % waiting for each other, 30 % for bytes");
  EXPECT_EQ(lines[1], "slowest: rank 1, 300ms of computing a step; fastest: rank 0, 100ms");
  RankMeans alone;
  alone.add({});
  EXPECT_TRUE(rank_lines(alone.means()).empty());
}

}  // namespace
}  // namespace ebb
