// A lane that only these tests know: whole training runs go through it, exact, planned and costed.
#include <gtest/gtest.h>

#include "data/source.h"
#include "memory_lane.h"
#include "model_fixture.h"
#include "plan/planned_run.h"
#include "state/checkpoint.h"
#include "temp_folder.h"
#include "train/session.h"
#include "train/trainer.h"

namespace ebb {
namespace {

constexpr int64_t kAmple = int64_t{1} << 40;

// Samples out of nothing.
class MadeUp final : public Source {
 public:
  explicit MadeUp(const DitConfig& config) {
    info_.kind = "made up";
    info_.count = 40;
    info_.channels = config.channels;
    info_.height = info_.width = config.image_size;
    info_.classes = config.classes;
    info_.pixels = true;
    info_.type = DType::u8;
  }
  void load(std::byte* values, int32_t* label, int64_t index, std::span<std::byte>) const override {
    for (int64_t i = 0; i < sample_values(); ++i) {
      values[i] = static_cast<std::byte>((index * 31 + i * 7) % 255);
    }
    *label = this->label(index);
  }
  int64_t scratch_bytes() const override { return 0; }
  int32_t label(int64_t index) const override { return static_cast<int32_t>(index % 5); }
  int64_t heap_bytes() const override { return 0; }
  int64_t held_bytes() const override { return 0; }
};

class Lanes : public testing::Test {
 protected:
  Lanes() : config_(small_config(Objective::flow)), source_(config_) {
    config_.width = 64;
    set_blocks(config_, 6, 4);
  }

  TrainOptions options(const char* out, int64_t budget) const {
    TrainOptions o;
    o.out = folder_.path() / out;
    o.config = config_;
    o.name = "test";
    o.step.batch = 6;
    o.steps = 4;
    o.save_every = 4;
    o.lr = 1e-3;
    o.budget_bytes = budget;
    return o;
  }

  // Trains, and returns the bytes of every tensor of its checkpoint.
  std::map<std::string, std::vector<float>> trained(const TrainOptions& o, const Machine& machine,
                                                    bool lane_used) {
    const PlannedRun planned = plan_fitting_run(run_spec(o, &source_), machine);
    EXPECT_EQ(planned.plans.total_away_bytes() > 0, lane_used);
    EXPECT_LE(planned.process_bytes(), o.budget_bytes);
    train(o, source_, planned, machine);
    const SafetensorsReader file(checkpoint_path(o.out, o.steps));
    std::map<std::string, std::vector<float>> tensors;
    for (const TensorEntry& entry : file.tensors()) {
      std::vector<float>& values = tensors[entry.name];
      values.resize(entry.count());
      file.read_f32(entry, values.data(), entry.count());
    }
    return tensors;
  }

  int64_t floor_of(const Machine& machine) const {
    return plan_run_and_floor(run_spec(options("none", kAmple), &source_), machine).floor_bytes;
  }

  Machine with_lane(int64_t most_bytes, double rate) const {
    Machine machine = middling_machine();
    machine.lanes.push_back(memory_lane(most_bytes, rate));
    return machine;
  }

  const OneThread one_thread_;
  TempFolder folder_;
  DitConfig config_;
  const MadeUp source_;
};

TEST_F(Lanes, AWholeRunGoesThroughOneThatNobodyElseKnows) {
  const Machine plain = middling_machine();
  const Machine machine = with_lane(kAmple, 1e9);
  const int64_t floor = floor_of(machine);
  ASSERT_LT(floor, floor_of(plain)) << "the lane saves nothing";
  const auto in_memory = trained(options("memory", kAmple), plain, false);
  const auto away = trained(options("away", floor), machine, true);
  EXPECT_EQ(in_memory, away);
}

TEST_F(Lanes, ItsSpeedIsPartOfTheTime) {
  const auto seconds = [&](double rate) {
    const Machine machine = with_lane(kAmple, rate);
    const RunSpec spec = run_spec(options("none", floor_of(machine)), &source_);
    return plan_run(spec, machine).seconds;
  };
  EXPECT_GT(seconds(1e6), 2 * seconds(1e12));
}

TEST_F(Lanes, ItHoldsNoMoreThanItCan) {
  const Machine ample = with_lane(kAmple, 1e9);
  const RunSpec spec = run_spec(options("none", floor_of(ample)), &source_);
  const PlannedRun full = plan_run(spec, ample);
  ASSERT_TRUE(full.fits);
  const int64_t away = full.plans.total_away_bytes();
  EXPECT_TRUE(plan_run(spec, with_lane(away, 1e9)).fits);
  EXPECT_FALSE(plan_run(spec, with_lane(away - 1, 1e9)).fits);
}

TEST_F(Lanes, TwoStandSideBySide) {
  Machine both = with_lane(0, 1e9);  // the first holds nothing: the second is taken
  both.lanes.push_back(memory_lane(kAmple, 1e9));
  const auto in_memory = trained(options("memory", kAmple), middling_machine(), false);
  EXPECT_EQ(in_memory, trained(options("second", floor_of(with_lane(kAmple, 1e9))), both, true));
}

// Pictures come after the last step: who stops there has stopped the run.
TEST_F(Lanes, ARunThatIsAskedToStopAfterItsLastStepWasStopped) {
  struct Counting : RunSink {
    void step(const StepRecord& record) override { done = record.step; }
    int64_t done = 0;
  } sink;
  const TrainOptions o = options("stopped", kAmple);
  const Machine machine = middling_machine();
  const PlannedRun planned = plan_fitting_run(run_spec(o, &source_), machine);
  RunControl control;
  control.stop = [&] { return sink.done == o.steps; };
  const Trained trained = train(o, source_, planned, machine, {&sink}, control);
  EXPECT_EQ(trained.steps, o.steps);
  EXPECT_TRUE(trained.stopped);
  EXPECT_TRUE(std::filesystem::exists(checkpoint_path(o.out, o.steps)));
}

TEST_F(Lanes, SeveralRunsLiveInOneProcess) {
  const Machine machine = middling_machine();
  const TrainOptions o = options("one", kAmple);
  const PlannedRun planned = plan_fitting_run(run_spec(o, &source_), machine);
  Session one(config_, planned, machine), two(config_, planned, machine);
  one.initialise(1);
  two.initialise(2);
  const auto weights = [](Session& session) {
    const StateTensor& t = session.state().at("final_layer.linear.bias");
    std::vector<float> values(t.count());
    session.state().read(t, 0, values.data(), t.count());
    return values;
  };
  const auto before = weights(two);
  MadeFeed feed(o.step.batch, config_.channels * config_.pixels(), config_.classes, DType::u8);
  one.step().take_from(feed);
  Scalars scalars = training_scalars(0);
  one.step().run(scalars);
  EXPECT_NE(weights(one), before);
  EXPECT_EQ(weights(two), before);
}

}  // namespace
}  // namespace ebb
