// Predicted times of several ranks: by hand where that can be done, and by what must always hold.
#include "plan/rank_time.h"

#include <random>

#include "hand_script.h"
#include "plan/rank_check.h"
#include "step_runs.h"

namespace ebb {
namespace {

using Kind = RankInterval::Kind;

std::vector<double> ends(const RankTimes& times) {
  std::vector<double> found;
  for (const RankTime& rank : times.ranks) found.push_back(rank.seconds);
  return found;
}

void expect_ends(const RankTimes& times, const std::vector<double>& expected) {
  const std::vector<double> found = ends(times);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t r = 0; r < found.size(); ++r)
    EXPECT_NEAR(found[r], expected[r], 1e-9) << "rank " << r;
}

// ---- by hand ------------------------------------------------------------------------------------

TEST(RankTime, OneMessageTakesItsBytesAndTheLatency) {
  const RankTimes times = simulate(
      {Script().compute(2).send(1, 300).last(), Script().receive(0, 300).last().compute(1)}, kLink);
  expect_ends(times, {5.5, 6.5});
  EXPECT_DOUBLE_EQ(times.seconds(), 6.5);
  EXPECT_DOUBLE_EQ(times.ranks[0].computing, 2);
  EXPECT_DOUBLE_EQ(times.ranks[0].waiting, 3.5);
  EXPECT_DOUBLE_EQ(times.ranks[1].computing, 1);
  EXPECT_DOUBLE_EQ(times.ranks[1].waiting, 5.5);
  EXPECT_EQ(times.ranks[0].sent_bytes, 300);
  EXPECT_EQ(times.ranks[0].received_bytes, 0);
  EXPECT_EQ(times.ranks[1].received_bytes, 300);
}

TEST(RankTime, ASendWaitsForItsReceive) {
  expect_ends(
      simulate({Script().send(1, 100).last(), Script().compute(4).receive(0, 100).last()}, kLink),
      {5.5, 5.5});
}

TEST(RankTime, ComputingGoesOnWhileBytesMove) {
  const auto run = [](double computing) {
    return simulate({Script().send(1, 200).compute(computing).last(),
                     Script().receive(0, 200).compute(computing).last()},
                    kLink);
  };
  expect_ends(run(1), {2.5, 2.5});
  expect_ends(run(4), {4, 4});
  EXPECT_DOUBLE_EQ(run(4).ranks[0].waiting, 0);
}

TEST(RankTime, AChainOfThreePassesOn) {
  expect_ends(simulate({Script().compute(1).send(1, 100).last(),
                        Script().receive(0, 100).last().compute(1).send(2, 100).last(),
                        Script().receive(1, 100).last().compute(1)},
                       kLink),
              {2.5, 5, 6});
}

TEST(RankTime, APortIsSharedByWhatItSendsAtOnce) {
  // 100 and 300 bytes from one port: 50 each until the short one has left, at 2 s.
  expect_ends(simulate({Script().send(1, 100).send(2, 300).wait(0).wait(1),
                        Script().receive(0, 100).last(), Script().receive(0, 300).last()},
                       kLink),
              {4.5, 2.5, 4.5});
  // And into one port.
  expect_ends(simulate({Script().send(2, 100).last(), Script().send(2, 300).last(),
                        Script().receive(0, 100).receive(1, 300).wait(0).wait(1)},
                       kLink),
              {2.5, 4.5, 4.5});
}

TEST(RankTime, APortSendsAndReceivesAtTheSameTime) {
  const RankScript a = Script().send(1, 200).receive(1, 200).wait(0).wait(1);
  const RankScript b = Script().send(0, 200).receive(0, 200).wait(0).wait(1);
  expect_ends(simulate({a, b}, kLink), {2.5, 2.5});
}

TEST(RankTime, WhatAFlowCannotUseIsLeftToOthers) {
  // 0 and 1 and 2 send to 3, which gives each a third; 0 sends to 4 as well, and has two thirds.
  const RankTimes times =
      simulate({Script().send(3, 100).send(4, 200).wait(0).wait(1), Script().send(3, 100).last(),
                Script().send(3, 100).last(),
                Script().receive(0, 100).receive(1, 100).receive(2, 100).wait(0).wait(1).wait(2),
                Script().receive(0, 200).last()},
               kLink);
  expect_ends(times, {3.5, 3.5, 3.5, 3.5, 3.5});
}

TEST(RankTime, MessagesOfAStreamTravelInOrderAndOthersBesideThem) {
  // One after the other: the first is there after 1 s. Another channel takes half of the port.
  const auto run = [](int channel) {
    return simulate({Script().send(1, 100).send(1, 100, channel).wait(0).wait(1),
                     Script().receive(0, 100).receive(0, 100, channel).wait(0).compute(9).wait(1)},
                    kLink);
  };
  expect_ends(run(0), {2.5, 10.5});
  expect_ends(run(1), {2.5, 11.5});
}

TEST(RankTime, TheSecondStepBeginsWhereTheFirstHasLeftEachRank) {
  const std::vector<RankScript> scripts{Script().compute(3).send(1, 100).last(),
                                        Script().receive(0, 100).last().compute(2)};
  const RankTimes times = simulate(scripts, kLink, {.steps = 3});
  ASSERT_EQ(times.step_ends.size(), 3u);
  EXPECT_DOUBLE_EQ(times.step_ends[0], 6.5);
  EXPECT_DOUBLE_EQ(times.step_ends[1], 11);  // the sender has begun 2 s before
  EXPECT_DOUBLE_EQ(times.step_ends[2], 15.5);
  EXPECT_EQ(times.ranks[0].sent_bytes, 300);
  EXPECT_DOUBLE_EQ(times.ranks[0].computing, 9);
}

TEST(RankTime, TheTimelineIsWhatTheSumsSay) {
  const RankTimes times = simulate({Script().compute(1).compute(1).send(1, 100).last(),
                                    Script().receive(0, 100).last().compute(1)},
                                   kLink, {.timeline = true});
  std::map<std::tuple<int, Kind>, std::vector<std::pair<double, double>>> found;
  for (const RankInterval& i : times.timeline) found[{i.rank, i.kind}].push_back({i.begin, i.end});
  using Times = std::vector<std::pair<double, double>>;
  EXPECT_EQ((found[{0, Kind::computing}]), (Times{{0, 2}}));
  EXPECT_EQ((found[{0, Kind::sending}]), (Times{{2, 3.5}}));
  EXPECT_EQ((found[{0, Kind::waiting}]), (Times{{2, 3.5}}));
  EXPECT_EQ((found[{1, Kind::waiting}]), (Times{{0, 3.5}}));
  EXPECT_EQ((found[{1, Kind::receiving}]), (Times{{2, 3.5}}));
  EXPECT_EQ((found[{1, Kind::computing}]), (Times{{3.5, 4.5}}));
}

// Every rank makes a gradient of `w` seconds in k pieces, each of which it adds to what comes and
// passes on. A receive begins when its piece is wanted, or a piece ahead.
RankScript chain_script(int r, int n, int k, double w, int64_t bytes, bool ahead) {
  Script script;
  int messages = 0, coming = -1, leaving = -1;
  const auto receive = [&](int piece) {
    if (r == 0 || piece == k) return;
    script.receive(r - 1, bytes / k);
    coming = messages++;
  };
  if (ahead) receive(0);
  for (int piece = 0; piece < k; ++piece) {
    if (!ahead) receive(piece);
    if (r > 0) script.wait(coming);
    if (ahead) receive(piece + 1);
    script.compute(w / k);
    if (r == n - 1) continue;
    if (leaving >= 0) script.wait(leaving);
    script.send(r + 1, bytes / k);
    leaving = messages++;
  }
  if (leaving >= 0) script.wait(leaving);
  return script;
}

// The last rank is done (n - 1)(w + x) / k later than one alone, x the transfer, if receives begin
// ahead; else it waits for every piece but the first one again.
TEST(RankTime, AChainInPiecesTakesWhatTheFormulaSays) {
  constexpr double kW = 6;
  for (const int n : {2, 3, 8, 64}) {
    for (const int k : {1, 2, 5, 30}) {
      for (const int64_t bytes : {0, 120, 600}) {  // x up to w: the pipe does not clog
        SCOPED_TRACE(fmt::format("{} ranks, {} pieces, {} bytes", n, k, bytes));
        const auto seconds = [&](bool ahead) {
          std::vector<RankScript> scripts;
          for (int r = 0; r < n; ++r) scripts.push_back(chain_script(r, n, k, kW, bytes, ahead));
          return simulate(scripts, {100, 0}).seconds();
        };
        const double x = static_cast<double>(bytes) / 100;
        const double formula = kW + (n - 1) * (kW + x) / k;
        EXPECT_NEAR(seconds(true), formula, 1e-9);
        EXPECT_NEAR(seconds(false), formula + x * (k - 1) / k, 1e-9);
      }
    }
  }
}

// ---- of programs --------------------------------------------------------------------------------

std::vector<Program> step_programs(const DitConfig& config, int64_t batch, int ranks, Shard shard) {
  std::vector<Program> made;
  for (int r = 0; r < ranks; ++r) {
    StepSpec spec = updating(1, batch);
    spec.place = {ranks, 1, r};
    spec.choices.shard = shard;
    made.push_back(write_step(config, spec, cpu_device()));
  }
  return made;
}

std::vector<RankScript> scripts_of(const std::vector<Program>& programs) {
  std::vector<RankScript> scripts;
  for (const Program& program : programs) scripts.push_back(script_of(program, middling_machine()));
  return scripts;
}

TEST(RankTime, BytesAreThoseThatTheValidatorCounts) {
  for (const Shard shard : {Shard::off, Shard::grads}) {
    const std::vector<Program> programs = step_programs(small_config(), 5, 4, shard);
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    const std::vector<int64_t> sent = check_ranks(all);
    const RankTimes times = simulate(scripts_of(programs), kLink);
    int64_t left = 0, arrived = 0;
    for (size_t r = 0; r < sent.size(); ++r) {
      EXPECT_EQ(times.ranks[r].sent_bytes, sent[r]);
      left += sent[r];
      arrived += times.ranks[r].received_bytes;
    }
    EXPECT_EQ(left, arrived);
  }
}

TEST(RankTime, EverySecondOfARankIsComputingOrWaiting) {
  const std::vector<RankScript> scripts =
      scripts_of(step_programs(small_config(), 6, 3, Shard::grads));
  const RankTimes times = simulate(scripts, {1e6, 1e-4});
  for (size_t r = 0; r < scripts.size(); ++r) {
    const RankTime& rank = times.ranks[r];
    double own = 0;
    for (const RankStep& step : scripts[r].steps) own += step.seconds;
    EXPECT_NEAR(rank.computing, own, 1e-12);
    EXPECT_NEAR(rank.computing + rank.waiting, rank.seconds, 1e-9);
  }
}

// But for which of two messages comes first at a port, which a slower link may turn about.
TEST(RankTime, ASlowerLinkNeverEndsARunEarlier) {
  constexpr double kTurnedAbout = 0.998;
  for (const Shard shard : {Shard::off, Shard::grads}) {
    const std::vector<RankScript> scripts =
        scripts_of(step_programs(named_config("DiT-S/2"), 16, 8, shard));
    std::map<std::pair<double, double>, double> found;
    const double rates[] = {1e6, 1e7, 1e8, 2e8, 3e8, 1e9, 1e10},
                 latencies[] = {1e-6, 1e-4, 1e-2, 1};
    for (const double rate : rates) {
      for (const double latency : latencies) {
        found[{rate, latency}] = simulate(scripts, {rate, latency}).seconds();
      }
    }
    for (const auto& [a, seconds] : found) {
      for (const auto& [b, other] : found) {
        if (a.first <= b.first && a.second >= b.second) {
          EXPECT_GE(seconds, kTurnedAbout * other)
              << a.first << " and " << a.second << " against " << b.first << " and " << b.second;
        }
      }
    }
  }
}

// ---- refusals -----------------------------------------------------------------------------------

std::string refusal(const std::vector<RankScript>& scripts) {
  try {
    simulate(scripts, kLink);
  } catch (const Bug& bug) {
    return bug.what();
  }
  return "";
}

TEST(RankTime, RanksThatWaitForEachOtherAreNamed) {
  EXPECT_EQ(refusal({Script().receive(1, 8).last(), Script().receive(0, 8).last()}),
            "ranks: they wait for each other: rank 0 for receive, rank 1 for receive");
  EXPECT_EQ(refusal({Script().send(1, 8).last(), Script()}),
            "ranks: they wait for each other: rank 0 for send");
  EXPECT_NE(refusal({Script().send(1, 8).last(), Script().receive(0, 9).last()}).find("bytes"),
            std::string::npos);
  EXPECT_NE(refusal({Script().send(0, 8).last()}).find("for rank 0 of 1"), std::string::npos);
  EXPECT_NE(refusal({Script().send(2, 8).last(), Script()}).find("for rank 2 of 2"),
            std::string::npos);
}

// Ops of a rank in another order, or changed: refused if and only if the validator refuses them.
TEST(RankTime, RefusesWhatTheValidatorRefuses) {
  std::mt19937 random(11);
  const std::vector<Program> right = step_programs(small_config(), 4, 3, Shard::grads);
  int passed = 0, refused = 0;
  for (int i = 0; i < 150; ++i) {
    std::vector<Program> made = right;
    for (Program& program : made) {
      std::erase_if(program.ops,
                    [](const Op& op) { return !std::holds_alternative<Exchange>(op.params); });
      program.loops.clear();
      program.marks.clear();
    }
    std::vector<Op>& ops = made[random() % 3].ops;
    const size_t at = random() % (ops.size() - 1);
    if (i % 3 == 0) std::get<Exchange>(ops[at].params).n += 1;
    if (i % 3 == 1) ops.erase(ops.begin() + static_cast<ptrdiff_t>(at));
    if (i % 3 == 2) std::swap(ops[at], ops[at + 1]);
    std::vector<const Program*> all;
    for (const Program& program : made) all.push_back(&program);
    bool valid = true, ran = true;
    try {
      check_ranks(all);
    } catch (const Bug&) {
      valid = false;
    }
    try {
      simulate(scripts_of(made), kLink);
    } catch (const Bug&) {
      ran = false;
    }
    EXPECT_EQ(valid, ran) << "try " << i;
    (valid ? passed : refused) += 1;
  }
  EXPECT_GT(passed, 20);
  EXPECT_GT(refused, 20);
}

// ---- size ---------------------------------------------------------------------------------------

// Some 260 messages of a rank each with its neighbours, and 255 with all ranks: what happens to
// each is few events, and the same every time.
TEST(RankTime, TwoHundredAndFiftySixRanksAreFewEventsAMessage) {
  constexpr int kRanks = 256;
  const DitConfig config = named_config("DiT-S/2");
  std::vector<RankScript> scripts;
  for (int r = 0; r < kRanks; ++r) {
    StepSpec spec = updating(1, kRanks);
    spec.place = {kRanks, 1, r};
    spec.choices.shard = Shard::grads;
    scripts.push_back(script_of(write_step(config, spec, cpu_device()), middling_machine()));
  }
  int64_t steps = 0, messages = 0;
  for (const RankScript& script : scripts) {
    steps += static_cast<int64_t>(script.steps.size());
    messages += static_cast<int64_t>(script.messages.size()) / 2;
  }
  for (const char* text : {"100G,2us", "1G,50us"}) {
    const Link link = parse_link(text, "--link");
    const RankTimes times = simulate(scripts, link);
    EXPECT_LT(times.events, steps + 10 * messages) << text;
    const RankTimes again = simulate(scripts, link);
    EXPECT_EQ(times.events, again.events);
    EXPECT_EQ(ends(times), ends(again));
  }
}

}  // namespace
}  // namespace ebb
