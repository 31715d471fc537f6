// Plans: the ledger, what programs share, the validator and the CSV.
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <set>
#include <sstream>

#include "model_fixture.h"
#include "plan/packing.h"
#include "sampler_fixture.h"

namespace ebb {
namespace {

// ---- the ledger
// ----------------------------------------------------------------------------------

TEST(Ledger, AddsUpToTheArenaByPurposeAndByLayer) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    for (const bool update : {true, false}) {
      const PlanSet set = make_plans({write_step(m.config, step_spec(3, update), cpu_device())});
      const Plan& plan = set.plans[0];
      EXPECT_EQ(plan.ledger.total(), set.arena_bytes);
      EXPECT_EQ(plan.bytes, set.arena_bytes);
      EXPECT_GE(plan.ledger.gap, 0);
      std::array<int64_t, kPurposes> by_layer{};
      for (const auto& [layer, bytes] : plan.ledger.layer) {
        for (int p = 0; p < kPurposes; ++p) by_layer[p] += bytes[p];
      }
      EXPECT_EQ(by_layer, plan.ledger.purpose);
    }
  }
}

TEST(Ledger, KnowsTheSizeOfTheState) {
  const DitConfig config = small_config();
  const PlanSet set = make_plans({write_step(config, step_spec(2), cpu_device())});
  int64_t all = 0;
  int64_t trained = 0;
  for (const ParamSpec& spec : parameters(config)) {
    all += Limits{}.aligned(element_count(spec.shape) * 4);
    if (spec.trained()) trained += Limits{}.aligned(element_count(spec.shape) * 4);
  }
  const auto of = [&](Purpose p) { return set.plans[0].ledger.purpose[static_cast<int>(p)]; };
  EXPECT_EQ(of(Purpose::weight), all);
  EXPECT_EQ(of(Purpose::moment), 2 * trained);
  EXPECT_EQ(of(Purpose::ema), trained);
  EXPECT_EQ(set.plans[0].resident_bytes, all + 3 * trained);
}

TEST(Ledger, IsTakenWhereTheMostBytesAreAlive) {
  const PlanSet set = make_plans({write_step(small_config(), step_spec(2), cpu_device())});
  const Plan& plan = set.plans[0];
  const auto alive_at = [&](int op) {
    int64_t bytes = 0;
    for (size_t i = 0; i < plan.lives.size(); ++i) {
      const bool alive = plan.lives[i].begin <= op && op < plan.lives[i].end;
      if (alive) bytes += Limits{}.aligned(plan.program.buffers[i].bytes());
    }
    return bytes;
  };
  for (int op = 0; op < static_cast<int>(plan.program.ops.size()); ++op) {
    if (op < plan.peak_op) {
      EXPECT_LT(alive_at(op), alive_at(plan.peak_op));
    } else {
      EXPECT_LE(alive_at(op), alive_at(plan.peak_op));
    }
  }
  EXPECT_EQ(plan.ledger.total() - plan.ledger.gap, alive_at(plan.peak_op));
}

// In a shared arena the sampler's own ledger must not book the step's moments as unused.
TEST(Ledger, TheGapIsWhatPackingCouldNotFillInEveryPlan) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const PlanSet set = make_plans(step_and_sampler(m.config, 2));
    for (const Plan& plan : set.plans) {
      std::vector<LiveBlock> blocks;
      for (size_t i = 0; i < plan.lives.size(); ++i) {
        const Buffer& b = plan.program.buffers[i];
        if (!b.resident) blocks.push_back({Limits{}.aligned(b.bytes()), plan.lives[i]});
      }
      EXPECT_EQ(plan.ledger.gap, pack(blocks).peak - liveness_bound(blocks)) << plan.program.name;
    }
  }
}

// ---- several programs in one arena
// ---------------------------------------------------------------

TEST(Plans, ResidentsOfSeveralProgramsHaveOnePlace) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const PlanSet set = make_plans(step_and_sampler(m.config, 2));
    std::map<std::string, int64_t> places;
    int shared = 0;
    for (const Plan& plan : set.plans) {
      EXPECT_LE(plan.bytes, set.arena_bytes);
      EXPECT_EQ(plan.resident_bytes, set.plans[0].resident_bytes);
      for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
        const Buffer& b = plan.program.buffers[i];
        if (!b.resident) {
          EXPECT_GE(plan.offsets[i], plan.lives[i].empty() ? 0 : plan.resident_bytes) << b.name;
          continue;
        }
        const auto [at, added] = places.try_emplace(b.name, plan.offsets[i]);
        EXPECT_EQ(at->second, plan.offsets[i]) << b.name;
        EXPECT_LE(plan.offsets[i] + b.bytes(), plan.resident_bytes) << b.name;
        shared += !added;
      }
    }
    int weights = 0;  // and their masks
    for (const ParamSpec& spec : parameters(m.config)) weights += spec.sparse() ? 2 : 1;
    EXPECT_EQ(shared, weights);
  }
}

TEST(Plans, RefuseResidentsOfTwoSizes) {
  DitConfig wider = small_config();
  wider.classes = 6;
  SamplerSpec spec = sampler_spec(wider);
  EXPECT_THROW(make_plans({write_step(small_config(), step_spec(1), cpu_device()),
                           sampler_programs(wider, spec, cpu_device())[1]}),
               Bug);
}

// Pictures between two steps change nothing of the training, to the bit.
TEST(Plans, ASamplerBetweenTwoStepsLeavesTheTrainingUntouched) {
  const OneThread one_thread;
  for (const Objective objective : {Objective::ddpm, Objective::flow}) {
    const DitConfig config = uneven_config(objective);
    const auto start = [&](Rig& machine) {
      machine.set_weights(config);
      machine.set_batch(config, 2);
      machine.executor().run(training_scalars(0));
    };
    const auto finish = [&](Rig& machine) {
      machine.set_batch(config, 2);
      machine.executor().run(training_scalars(1));
      return machine.residents() + std::to_string(machine.get(kLoss)[0]);
    };
    Rig alone(step_and_sampler(config, 2));
    start(alone);
    Rig disturbed(step_and_sampler(config, 2));
    start(disturbed);
    const std::string before = disturbed.residents();
    const SamplerSpec spec = sampler_spec(config);
    Drawer drawer(disturbed.plans(), spec, config, cpu_device(), disturbed.memory());
    double sum = 0;
    const auto label_of = [](int64_t place) { return static_cast<int32_t>(place + 1); };
    drawer.draw(3, label_of, 5, [&](int64_t, int64_t count, const float* values) {
      sum = std::accumulate(values, values + count * config.channels * config.pixels(), sum);
    });
    EXPECT_TRUE(std::isfinite(sum) && sum != 0);
    EXPECT_EQ(disturbed.residents(), before);
    EXPECT_EQ(finish(disturbed), finish(alone));
  }
}

// ---- the validator
// -------------------------------------------------------------------------------

TEST(Validator, AcceptsThePlansOfRealPrograms) {
  std::vector<DitConfig> configs = {named_config("DiT-S/2"), named_config("DiT-XL/8")};
  for (const ModelCase& m : model_cases()) configs.push_back(m.config);
  for (const DitConfig& config : configs) {
    const PlanSet set = make_plans(step_and_sampler(config, 3));
    for (const Plan& plan : set.plans) EXPECT_NO_THROW(validate_plan(plan, set.arena_bytes));
    const PlanSet grad = make_plans({write_step(config, step_spec(3, false), cpu_device())});
    EXPECT_NO_THROW(validate_plan(grad.plans[0], grad.arena_bytes));
  }
}

// x -> y -> z -> out, with residents w and untouched.
const Limits kAnywhere{.alignment = 1};

class BrokenPlan : public testing::Test {
 protected:
  BrokenPlan() {
    Builder b("chain", cpu_device());
    const Buf w = b.declare({"w", "step", Purpose::weight, DType::f32, {100}, true});
    const Buf x = b.buffer("x", {100}, Purpose::data);
    b.input(x);
    const Buf y = b.buffer("y", {100});
    const Buf z = b.buffer("z", {100});
    const Buf out = b.buffer("out", {100});
    b.emit("y", Add{100}, {x, w}, {y});
    b.emit("z", Silu{100}, {y}, {z});
    b.emit("out", Add{100}, {z, w}, {out});
    b.output(out);
    set_ = make_plans({b.finish(), other_program()});
    plan_ = set_.plans[0];
  }
  static Program other_program() {
    Builder b("other", cpu_device());
    const Buf moment = b.declare({"moment", "step", Purpose::moment, DType::f32, {100}, true});
    b.emit("zero", Zero{100}, {}, {moment});
    return b.finish();
  }
  int64_t& offset(const char* name) { return plan_.offsets[plan_.program.at(name).id]; }
  void expect_refused() { EXPECT_THROW(validate_plan(plan_, set_.arena_bytes, kAnywhere), Bug); }

  PlanSet set_;
  Plan plan_;
};

TEST_F(BrokenPlan, IsWholeBeforeItIsBroken) {
  validate_plan(plan_, set_.arena_bytes, kAnywhere);
  EXPECT_EQ(plan_.peak_op, 0) << "all ops are equally full, and the first counts";
}

TEST_F(BrokenPlan, TwoLiveBuffersOverlapByOneByte) {
  for (const auto& [one, other] : {std::pair{"x", "y"}, {"y", "z"}, {"z", "out"}, {"w", "x"}}) {
    for (const int64_t by : {399, -399}) {
      plan_ = set_.plans[0];
      offset(one) = 4000;
      offset(other) = 4000 + by;
      EXPECT_THROW(validate_plan(plan_, 8000, kAnywhere), Bug)
          << one << " and " << other << " by " << by;
      offset(other) += by > 0 ? 1 : -1;
      EXPECT_NO_THROW(validate_plan(plan_, 8000, kAnywhere))
          << one << " and " << other << " beside " << by;
    }
  }
}

// silu may write over what it reads, when nothing reads that again. Add may take either place.
TEST_F(BrokenPlan, AnOutputMayTakeThePlaceOfADyingInputOnly) {
  EXPECT_EQ(offset("z"), offset("y"));
  offset("y") = 4000;
  EXPECT_NO_THROW(validate_plan(plan_, 8000, kAnywhere));
  offset("y") = offset("w");  // alive
  EXPECT_THROW(validate_plan(plan_, 8000, kAnywhere), Bug);
  plan_ = set_.plans[0];
  plan_.program.outputs.push_back(plan_.program.at("y"));
  expect_refused();
}

TEST_F(BrokenPlan, TwoInputsAtTheSamePlace) {
  offset("x") = offset("w");
  expect_refused();
}

TEST_F(BrokenPlan, AnOffsetIsNegative) {
  for (const char* name : {"w", "y"}) {
    for (const int64_t at : {-1, -1000}) {  // across the arena's start, and wholly before it
      plan_ = set_.plans[0];
      offset(name) = at;
      expect_refused();
    }
  }
}

TEST_F(BrokenPlan, ABufferEndsPastTheArena) {
  offset("out") = 8000 - 400;
  EXPECT_NO_THROW(validate_plan(plan_, 8000, kAnywhere));
  EXPECT_THROW(validate_plan(plan_, 7999, kAnywhere), Bug);
  EXPECT_THROW(validate_plan(plan_, set_.arena_bytes, kAnywhere), Bug);
}

TEST_F(BrokenPlan, AnOffsetIsMissing) {
  plan_.offsets.pop_back();
  expect_refused();
}

TEST_F(BrokenPlan, ALifeIsMissing) {
  plan_.lives.pop_back();
  expect_refused();
}

TEST_F(BrokenPlan, AnOpReadsWhatNothingWrote) {
  std::swap(plan_.program.ops[0], plan_.program.ops[1]);
  expect_refused();
}

TEST_F(BrokenPlan, AnOpUpdatesWhatIsWrittenOnlyLater) {
  offset("out") = 4000;
  validate_plan(plan_, 8000, kAnywhere);
  plan_.program.ops[1].updates.push_back(plan_.program.at("out"));
  EXPECT_THROW(validate_plan(plan_, 8000, kAnywhere), Bug);
}

// An output that the host reads later is alive to the end, though no op touches it any more.
TEST_F(BrokenPlan, AnEarlyOutputIsOverwritten) {
  plan_.program.outputs.push_back(plan_.program.at("y"));
  offset("out") = offset("y");
  expect_refused();
}

TEST_F(BrokenPlan, AnOutputIsNeverWritten) {
  plan_.program.ops.pop_back();
  expect_refused();
}

// "moment" is another program's resident: this plan has no buffer of that name, yet it must keep
// off.
TEST_F(BrokenPlan, AnActivationLiesOnAResidentOfAnotherProgram) {
  const Plan& other = set_.plans[1];
  offset("y") = other.offsets[other.program.at("moment").id];
  expect_refused();
}

// An input that no op reads is legal: labels of a network that ignores them.
TEST(Validator, AcceptsAnInputThatNoOpReads) {
  Builder b("unused", cpu_device());
  b.input(b.buffer("unused", {100}, Purpose::data));
  const Buf a = b.buffer("a", {100});
  const Buf c = b.buffer("c", {100});
  b.emit("a", Zero{100}, {}, {a});
  b.emit("c", Silu{100}, {a}, {c});
  b.output(c);
  const Program program = b.finish();
  EXPECT_NO_THROW(make_plans({program}));
}

TEST(Validator, SharesNoCodeWithThePacker) {
  std::ifstream in(EBB_SOURCE_DIR "/src/plan/validate.cpp");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  ASSERT_FALSE(text.empty());
  for (const char* word : {"plan/packing.h", "plan/lifetimes.h", "pack(", "lifetimes(",
                           "Limits{}.aligned(", "LiveBlock", "Lifetime", ".lives["}) {
    EXPECT_EQ(text.find(word), std::string::npos) << word;
  }
}

// ---- the CSV
// -------------------------------------------------------------------------------------

TEST(PlanCsv, ListsEveryLiveBufferOnce) {
  const PlanSet set = make_plans({write_step(small_config(), step_spec(2), cpu_device())});
  const Plan& plan = set.plans[0];
  std::istringstream csv(plan_csv(plan));
  std::string line;
  std::getline(csv, line);
  EXPECT_EQ(line, "id,lower,upper,size,offset");
  std::set<std::string> names;
  int64_t highest = 0;
  while (std::getline(csv, line)) {
    const size_t comma = line.find(',');
    const std::string name = line.substr(0, comma);
    long long lower = 0, upper = 0, size = 0, at = 0;
    ASSERT_EQ(std::sscanf(line.c_str() + comma, ",%lld,%lld,%lld,%lld", &lower, &upper, &size, &at),
              4)
        << line;
    EXPECT_TRUE(names.insert(name).second) << name;
    const Buf b = plan.program.at(name);
    EXPECT_EQ((Lifetime{static_cast<int>(lower), static_cast<int>(upper)}), plan.held[b.id]);
    EXPECT_EQ(size, Limits{}.aligned(plan.program.buffer(b).bytes()));
    EXPECT_EQ(at, plan.offsets[b.id]);
    highest = std::max<int64_t>(highest, at + size);
  }
  size_t alive = 0;
  for (const Lifetime& life : plan.lives) alive += !life.empty();
  EXPECT_EQ(names.size(), alive);
  EXPECT_EQ(highest, plan.bytes);
}

}  // namespace
}  // namespace ebb
