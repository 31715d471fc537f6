// Codes that lead up to another: which when, what they take, and that a run goes through them as if
// it had never been stopped.
#include "base/error.h"
#include "rank_fixture.h"
#include "train/trainer.h"

namespace ebb {
namespace {

ExchangeCode code_of(const std::string& text) { return parse_exchange(text).value(); }

std::vector<std::string> phases(const char* code, int64_t warmup) {
  std::vector<std::string> found;
  for (const ExchangePhase& phase : exchange_phases(code_of(code), warmup)) {
    found.push_back(fmt::format("{} {}", phase.begin, exchange_text(phase.code)));
  }
  return found;
}

using Lines = std::vector<std::string>;

TEST(ExchangePhases, FallByAQuarterInEqualParts) {
  EXPECT_EQ(phases("topk:0.01", 90),
            (Lines{"0 topk:0.25", "30 topk:0.0625", "60 topk:0.015625", "90 topk:0.01"}));
  EXPECT_EQ(phases("onebit", 7), (Lines{"0 fp32 before onebit", "7 onebit"}));
  EXPECT_EQ(phases("randomk:0.0625", 7), (Lines{"0 randomk:0.25", "7 randomk:0.0625"}));
  EXPECT_EQ(phases("topk:0.001", 10), (Lines{"0 topk:0.25", "2 topk:0.0625", "5 topk:0.015625",
                                             "7 topk:0.00390625", "10 topk:0.001"}));
  // Parts without a step are left out.
  EXPECT_EQ(phases("topk:0.01", 2), (Lines{"0 topk:0.0625", "1 topk:0.015625", "2 topk:0.01"}));
}

TEST(ExchangePhases, AreOneWithoutAWarmUpOrAnyUseForIt) {
  for (const char* code : {"topk:0.01", "randomk:0.5", "topk:0.25", "int8", "powersgd:4", "fp32"}) {
    const int64_t warmup = warms_up(code_of(code)) ? 0 : 100;
    EXPECT_EQ(phases(code, warmup), Lines{fmt::format("0 {}", code)});
  }
}

class PhasedRuns : public RankRuns {
 protected:
  static constexpr int64_t kSteps = 5, kWarmup = 3;  // topk:0.05: 0.25 for a step, 0.0625 for two

  TrainOptions options_of(const std::string& code, const std::string& out, int rank = 0) const {
    TrainOptions o = options({"", small_config()}, {2, 1, rank});
    o.name = "small";
    o.out = at(out);
    o.decisions.exchange = code_of(code);
    o.decisions.exchange_warmup = kWarmup;
    o.decisions.shard = Shard::off;  // less to look through
    o.decisions.release = false;
    o.steps = kSteps;
    o.save_every = kSteps;
    o.keep = 0;
    o.budget_bytes = int64_t{1} << 30;
    return o;
  }

  RunSpec spec_of(const std::string& code, int64_t warmup = kWarmup) const {
    TrainOptions o = options_of(code, "");
    o.decisions.exchange_warmup = warmup;
    return run_spec(o, source_.get());
  }

  // Every rank of a run with a folder, up to `steps`; as it is left behind.
  std::string run_to(int64_t steps, const std::string& code, const std::string& out, bool resume,
                     const std::function<void(TrainOptions&)>& change = {}) const {
    ThreadRanks::run(2, [&](Peers& peers) {
      TrainOptions o = options_of(code, out, peers.rank());
      o.steps = steps;
      o.resume = resume;
      if (change) change(o);
      ebb::train(o, *source_, plan_run(after_steps(run_spec(o, source_.get()), 0), machine_),
                 machine_, {}, {}, &peers);
    });
    return bytes_of(checkpoint_path(at(out), steps));
  }
};

TEST_F(PhasedRuns, GoOnWithTheBitsOfARunThatWasNeverStopped) {
  const std::string few = "topk:0.05", whole = run_to(kSteps, few, few, false);
  const std::string signs = "onebit", whole_signs = run_to(kSteps, signs, signs, false);
  // Where the second phase begins, and inside it; where the last one begins, and after it.
  const std::vector<std::pair<std::string, int64_t>> stops = {
      {few, 1}, {few, 2}, {signs, 3}, {signs, 4}};
  for (const auto& [code, stop] : stops) {
    SCOPED_TRACE(fmt::format("{} until {}", code, stop));
    const std::string out = fmt::format("{}-{}", code, stop);
    run_to(stop, code, out, false);
    EXPECT_TRUE(run_to(kSteps, code, out, true) == (code == few ? whole : whole_signs));
  }
  const auto plainly = [](TrainOptions& o) { o.decisions.exchange_warmup = 0; };
  EXPECT_FALSE(run_to(kSteps, few, "plain", false, plainly) == whole);
}

// What was not sent in one phase is there in the next: the checkpoint where they meet is the same
// state under either code.
TEST_F(PhasedRuns, CarryOverWhatWasNotSent) {
  run_to(kSteps, "topk:0.05", "run", false);
  for (const char* code : {"topk:0.0625", "topk:0.05"}) {
    StateKind kind{code, small_config()};
    kind.storage.exchange = code_of(code);
    train(kind, 2, Shard::off, checkpoint_path(at("run"), 3), 0, at(code));
  }
  EXPECT_TRUE(bytes_of(at("topk:0.05")) == bytes_of(at("topk:0.0625")));
  const SafetensorsReader file(at("topk:0.0625"));
  const TensorEntry* rest = file.find("rest1.final_layer.linear.weight");
  ASSERT_TRUE(rest != nullptr);
  std::vector<double> values(rest->count());
  file.read_f64(*rest, values.data(), rest->count());
  EXPECT_GT(std::count_if(values.begin(), values.end(), [](double x) { return x != 0; }),
            rest->count() / 2);
}

TEST_F(PhasedRuns, ArePlannedAllOfThemAndTheFullestIsThePlan) {
  const PlannedRun all = plan_run(spec_of("topk:0.05"), machine_);
  ASSERT_EQ(all.phases.size(), 3u);
  EXPECT_TRUE(all.fits);
  for (const PlannedPhase& phase : all.phases) {
    const PlannedRun alone = plan_run(spec_of(phase.code, 0), machine_);
    EXPECT_LE(phase.process_bytes, alone.most_bytes()) << phase.code << ": less to choose from";
    EXPECT_GE(all.most_bytes(), alone.most_bytes()) << phase.code << ": looking takes bytes too";
    EXPECT_EQ(phase.sent_bytes, alone.most_sent_bytes()) << phase.code;
    EXPECT_LE(phase.process_bytes, all.most_bytes()) << phase.code;
  }
  EXPECT_EQ(exchange_text(all.step.choices.storage.exchange), "topk:0.25");
  // Of each number that is sent its place and its value: a quarter, then a quarter of that.
  int64_t codable = 0;
  for (const ParamSpec& p : parameters(small_config())) {
    if (code_of("topk:0.05").codes(p)) codable += p.count();
  }
  const auto n = static_cast<double>(codable);
  EXPECT_NEAR(static_cast<double>(all.phases[0].sent_bytes - all.phases[1].sent_bytes),
              8 * (0.25 - 0.0625) * n, 0.01 * n);
}

TEST_F(PhasedRuns, ABudgetThatOnePhaseCannotHoldIsRefusedBeforeTheFirstStep) {
  RunSpec spec = spec_of("onebit");
  spec.config.width = 256;  // so that what is not sent counts
  set_blocks(spec.config, 1, 2);
  const int64_t floor = floor_of(spec, machine_);
  ASSERT_GT(floor, floor_of(after_steps(spec, 0), machine_));
  spec.budget_bytes = floor;
  EXPECT_TRUE(plan_run(spec, machine_).fits);
  spec.budget_bytes = floor - 1;
  EXPECT_TRUE(plan_run(after_steps(spec, 0), machine_).fits);
  EXPECT_FALSE(plan_run(spec, machine_).fits);
  try {
    plan_fitting_run(spec, machine_);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::budget);
    EXPECT_NE(std::string(e.what()).find("after step 3, with --exchange onebit"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace ebb
