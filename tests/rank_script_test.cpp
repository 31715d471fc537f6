// What a rank's program is to others, how ports are shared, and the picture of it all.
#include "plan/rank_script.h"

#include <cctype>
#include <map>
#include <random>

#include "hand_script.h"
#include "plan/fair_ports.h"
#include "report/rank_timeline.h"
#include "step_runs.h"

namespace ebb {
namespace {

Op zero_op(int64_t n) { return {"zero", "", Zero{n}, {}, {Buf{0}}, {}, {}}; }
Op exchange_op(Exchange::Part part, int peer, int buffer) {
  Op op{"message", "", Exchange{part, 1000, DType::f32, peer, 0}, {}, {}, {}, {}};
  op.reads.push_back(Buf{buffer});
  return op;
}

TEST(RankScripts, LoopsRunTheirCount) {
  const Machine machine = middling_machine();
  const double zero = machine.costs.seconds(Zero{1000});
  using Part = Exchange::Part;
  Program program;
  program.ops = {zero_op(1000), exchange_op(Part::send_begin, 1, 1),
                 exchange_op(Part::send_end, 1, 1), zero_op(1000)};
  program.loops = {{0, 3, 4}, {3, 4, 5}};
  const RankScript script = script_of(program, machine);
  ASSERT_EQ(script.messages.size(), 4u);
  EXPECT_EQ(script.messages[3].bytes, 4000);
  ASSERT_EQ(script.steps.size(), 4u * 3 + 1);
  EXPECT_NEAR(script.steps[9].seconds, zero, 1e-15);
  EXPECT_NEAR(script.steps[12].seconds, 5 * zero, 1e-15);
  Program other = program;
  for (Op& op : other.ops) {
    if (auto* x = std::get_if<Exchange>(&op.params)) {
      x->part = x->begins() ? Part::receive_begin : Part::receive_end;
      x->peer = 0;
    }
  }
  const Link link{1e9, 1e-3};
  EXPECT_NEAR(simulate({script, script_of(other, machine)}, link).seconds(),
              4 * (zero + 4000 / 1e9 + 1e-3) + 5 * zero, 1e-12);
}

TEST(RankScripts, WithoutMessagesTheyTakeWhatThePlanSays) {
  const Machine machine = with_disk(middling_machine());
  const DitConfig config = named_config("DiT-S/2");
  StepSpec spec = updating(1, 8);
  const auto expect_predicted = [&](const Program& program) {
    const RankScript script = script_of(program, machine);
    EXPECT_LE(script.steps.size(), 1u);
    EXPECT_NEAR(simulate({script}, kLink).seconds() / predicted_seconds(program, machine), 1,
                1e-12);
  };
  expect_predicted(write_step(config, spec, cpu_device()));
  for (const bool layer_major : {false, true}) {
    spec.choices = {.micro_batch = 2, .layer_major = layer_major};
    expect_predicted(write_step(config, spec, cpu_device()));
  }
}

// A lane that takes longer than its stage makes it longer; waiting for others counts for it.
TEST(RankScripts, LanesWorkBesideOpsAndMessages) {
  Machine machine = with_disk(middling_machine());
  machine.lanes[0].fetch_rate = 4000;  // a buffer of 1000 numbers in 1 s
  const double zero = machine.costs.seconds(Zero{1000});
  using Part = Exchange::Part;
  const Op fetch{"fetch", "", Transfer{Transfer::Part::fetch_begin, 1000}, {}, {Buf{2}}, {}, {}};
  Program program;
  program.ops = {zero_op(1000), fetch, exchange_op(Part::send_begin, 1, 1),
                 exchange_op(Part::send_end, 1, 1), zero_op(1000)};
  program.marks = {0, 1, 4};
  const RankScript script = script_of(program, machine);
  const auto seconds = [&](double other) {
    return simulate({script, Script().compute(other).receive(0, 4000).last()}, {4e9, 1e-9})
        .ranks[0]
        .seconds;
  };
  EXPECT_NEAR(seconds(0.5), 2 * zero + 1, 1e-6);
  EXPECT_NEAR(seconds(3), 3 + zero, 1e-5);
  program.ops = {zero_op(1000), fetch, zero_op(1000)};
  program.marks = {1};
  EXPECT_NEAR(simulate({script_of(program, machine)}, kLink).seconds(), zero + 1, 1e-12);
}

// ---- shares -------------------------------------------------------------------------------------

TEST(FairPorts, SharesAreMaxMinFairWhateverComesAndGoes) {
  std::mt19937 random(3);
  constexpr int kRanks = 6;
  FairPorts ports(kRanks, 100);
  struct Flow {
    int id, from, to;
    double most;
  };
  std::vector<Flow> flows;
  const auto load = [&](const Flow& like, bool out) {
    double all = 0, highest = 0;
    for (const Flow& f : flows) {
      if (out ? f.from != like.from : f.to != like.to) continue;
      all += ports.rate(f.id);
      highest = std::max(highest, ports.rate(f.id));
    }
    return std::pair(all, highest);
  };
  for (int i = 0; i < 2000; ++i) {
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      if (flows.size() > 3 && random() % 2 == 0) {
        const size_t gone = random() % flows.size();
        ports.remove(flows[gone].id);
        flows.erase(flows.begin() + static_cast<ptrdiff_t>(gone));
      } else {
        const int from = static_cast<int>(random() % kRanks),
                  to = static_cast<int>(random() % kRanks);
        const double most = random() % 3 == 0 ? 30 : 1e9;
        flows.push_back({ports.add(from, to, most), from, to, most});
      }
    }
    ports.share();
    for (const Flow& f : flows) {
      const double rate = ports.rate(f.id);
      EXPECT_LE(rate, f.most);
      // It has all that it can use, or a port of its own is full and gives nobody more.
      bool bound = std::abs(rate - f.most) < 1e-6;
      for (const bool out : {false, true}) {
        const auto [all, highest] = load(f, out);
        EXPECT_LE(all, 100 + 1e-6);
        bound = bound || (all > 100 - 1e-6 && rate > highest - 1e-6);
      }
      EXPECT_TRUE(bound) << "round " << i << ": " << f.from << " to " << f.to << " has " << rate;
    }
  }
}

// ---- the picture --------------------------------------------------------------------------------

TEST(RankScripts, AreCutByWorkWithTheSameSeconds) {
  const Machine machine = middling_machine();
  StepSpec spec = updating(1, 8);
  spec.choices.micro_batch = 2;
  const Program program = write_step(named_config("DiT-S/2"), spec, cpu_device());
  std::map<Work, double> seconds;
  for (const RankStep& step : script_of(program, machine, ScriptCut::works).steps) {
    seconds[step.work] += step.seconds;
  }
  ASSERT_EQ(seconds.size(), 4u);
  // Two products backward for each forward, and one of them for the matrix.
  EXPECT_NEAR(seconds[Work::matrices] / seconds[Work::forward], 0.9, 0.2);
  EXPECT_NEAR(seconds[Work::backward] / seconds[Work::forward], 1.2, 0.3);
  EXPECT_LT(seconds[Work::update], seconds[Work::matrices]);
  double all = 0;
  for (const auto& [work, each] : seconds) all += each;
  EXPECT_NEAR(all / predicted_seconds(program, machine), 1, 1e-12);
}

TEST(RankTimeline, HasEveryRankAndNoMoreThanCanBeSeen) {
  const auto picture = [](int ranks, int messages) {
    std::vector<RankScript> scripts;
    for (int r = 0; r < ranks; ++r) {
      Script script;
      for (int i = 0; i < messages; ++i) {
        script.compute(1);
        r % 2 == 0 ? script.send(r + 1, 100).last() : script.receive(r - 1, 100).last();
      }
      scripts.push_back(script);
    }
    const std::vector<std::string> names(ranks, "a <rank>");
    return rank_timeline_svg(simulate(scripts, {100, 0}, {.timeline = true}),
                             {"a title", "and more", names});
  };
  const auto lines = [](const std::string& svg) {
    size_t found = 0;
    for (size_t at = 0; (at = svg.find('h', at + 1)) != std::string::npos;) {
      found += std::isdigit(svg[at + 1]) != 0 ? 1 : 0;
    }
    return found;
  };
  const std::string few = picture(2, 3);
  EXPECT_EQ(lines(few), 2u * 3 * 3);  // computing, waiting, moving
  EXPECT_NE(few.find(">a &lt;rank><"), std::string::npos);
  EXPECT_NE(few.find(">a title<"), std::string::npos);
  EXPECT_NE(few.find(">waiting for others<"), std::string::npos);
  EXPECT_EQ(few.find(">update<"), std::string::npos);  // there is none
  EXPECT_LT(lines(picture(2, 100'000)), 2u * 2 * 1280);
  EXPECT_THROW(rank_timeline_svg(simulate({Script().compute(1)}, kLink), {"", "", {""}}), Bug);
}

// Work that is too short to be seen by itself is not left out: a row has no holes.
TEST(RankTimeline, ShortWorkIsDrawnWithWhatIsBesideIt) {
  RankScript script;
  for (int i = 0; i < 20'000; ++i) {
    script.steps.push_back({0.7, -1, RankStep::Kind::compute, Work::backward});
    script.steps.push_back({0.3, -1, RankStep::Kind::compute, Work::matrices});
  }
  const std::string svg =
      rank_timeline_svg(simulate({script}, kLink, {.timeline = true}), {"", "", {"one"}});
  EXPECT_NE(svg.find(">backward<"), std::string::npos);
  EXPECT_EQ(svg.find(">gradients of matrices<"), std::string::npos);
  const size_t path = svg.find("<path stroke=\"#e0913f\"");
  ASSERT_NE(path, std::string::npos);
  const size_t length = svg.find('h', svg.find(" d=\"", path));
  EXPECT_GT(std::stod(svg.substr(length + 1)), 860);
}

}  // namespace
}  // namespace ebb
