// --memory is a promise for the whole process, kept by every verb and foretold by `ebb plan`.
#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

constexpr int64_t kKiB = 1024;

class CliBudget : public CliTest {
 protected:
  CliBudget() { write_idx(); }
  static Args planning(const Args& more = {}) {
    Args args = training("unused", more);
    args[0] = "plan";
    return args + Args{"--json"};
  }
  static int64_t ledger_sum(const Json& plan) {
    int64_t sum = 0;
    for (const auto& [purpose, bytes] : plan["ledger"].items()) sum += bytes.get<int64_t>();
    return sum;
  }
};

// Here, where no sanitizer makes measuring slow.
TEST_F(CliBudget, ABenchCanMeasureTheMachineInTurnWithTheSteps) {
  const Json bench = json(Args{"bench", "--json", "--image-size", "8", "--batch", "2", "--rounds",
                               "1", "--recalibrate"} +
                          model());
  EXPECT_GT(bench["recalibrated_step_seconds"], 0);
}

TEST_F(CliBudget, ABenchTeachesThePlannerThePaceOfWholeSteps) {
  launch_.calibration = at("calibration.json");
  fs::copy_file(EBB_CALIBRATION_FILE, launch_.calibration);
  const auto bench = [&] {
    return json({"bench", "--json", "--width", "256", "--depth", "4", "--heads", "4", "--patch",
                 "2", "--image-size", "32", "--batch", "24", "--rounds", "1"});
  };
  const Json first = bench();
  ASSERT_GT(first["step_seconds"], 0.2) << "too short to count";
  const Json second = bench();
  EXPECT_NEAR(second["predicted_step_seconds"].get<double>() / first["step_seconds"].get<double>(),
              1, 1e-4);
  EXPECT_EQ(second["planned_process_bytes"], first["planned_process_bytes"]);
}

TEST_F(CliBudget, ABudgetThatIsTooSmallIsRefusedBeforeTraining) {
  const Result result = run(training("out", {"--steps", "2", "--memory", "4M"}));
  expect_refused(result, 3, {"needs", "MiB", "--memory 4.00 MiB"});
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CliBudget, PlanSaysThatABudgetIsTooSmallAndStillAnswers) {
  const Result result = run(planning({"--memory", "4M"}));
  expect_refused(result, 3, {"needs", "MiB", "--memory 4.00 MiB"});
  const Json plan = parsed(result);
  EXPECT_EQ(plan["fits"], false);
  EXPECT_EQ(plan["budget_bytes"], 4 * kKiB * kKiB);
  EXPECT_GT(plan["floor_bytes"], plan["budget_bytes"]);
}

TEST_F(CliBudget, EveryOtherVerbRefusesABudgetThatIsTooSmall) {
  succeed(training("run", {"--steps", "1"}));
  expect_refused(run({"sample", "--from", "run", "--out", "a.png", "--memory", "4M"}), 3,
                 {"needs"});
  const std::string golden = EBB_SOURCE_DIR "/tests/golden/flow_small";
  expect_refused(run({"grad", "--weights", golden + ".weights.safetensors", "--batch-file",
                      golden + ".batch.safetensors", "--out", "g.safetensors", "--memory", "4M"}),
                 3, {"needs"});
  expect_refused(
      run(Args{"bench", "--image-size", "8", "--batch", "2", "--memory", "4M"} + model()), 3,
      {"needs"});
  EXPECT_FALSE(fs::exists(at("a.png")));
  EXPECT_FALSE(fs::exists(at("g.safetensors")));
}

TEST_F(CliBudget, ABudgetLargerThanTheMachineIsOnlyWarnedOf) {
  const Result result =
      succeed(training("out", {"--steps", "2", "--save-every", "0", "--memory", "900T"}));
  EXPECT_EQ(result.err_line(0).rfind("warning: ", 0), 0u) << result.story();
  EXPECT_TRUE(contains(result.err_line(0), "--memory")) << result.story();
  EXPECT_EQ(log("out").size(), 2u);
}

TEST_F(CliBudget, TrainingUsesTheArenaThatPlanForetold) {
  const std::vector<Args> kSettings = {{},
                                       {"--objective", "flow", "--ema", "0"},
                                       {"--batch", "3", "--clip", "1", "--weight-decay", "0.1"},
                                       {"--qk-norm", "layer", "--loader-threads", "2"}};
  for (size_t i = 0; i < kSettings.size(); ++i) {
    const std::string out = "run" + std::to_string(i);
    succeed(training(out, Args{"--steps", "3", "--save-every", "0"} + kSettings[i]));
    const Json plan = json(planning(kSettings[i]));
    EXPECT_EQ(ledger_sum(plan), plan["arena_bytes"]);
    for (const Json& line : log(out)) {
      EXPECT_EQ(line["arena_peak_bytes"], plan["arena_bytes"]) << line;
    }
  }
}

TEST_F(CliBudget, TheArenaOfARunThatDrawsIsTheOneForetoldToo) {
  // Drawing 32 pictures at once takes more than a step of 4 samples: fewer are drawn at a time.
  const Args settings = {"--sample-every", "1", "--sample-steps", "1"};
  succeed(training("run", Args{"--steps", "3", "--save-every", "0"} + settings));
  const Json plan = json(planning(settings));
  EXPECT_EQ(plan["arena_bytes"], json(planning())["arena_bytes"]);
  EXPECT_EQ(log("run").back()["arena_peak_bytes"], plan["arena_bytes"]);
}

TEST_F(CliBudget, TheProcessStaysWithinWhatPlanForetold) {
  const int64_t planned = json(planning())["process_bytes"];
  const Result result = succeed(training("out", {"--steps", "30", "--save-every", "10"}));
  for (const Json& line : log("out")) {
    ASSERT_LE(line["process_peak_bytes"], planned) << line;
  }
  EXPECT_LE(result.peak_bytes, planned);
}

TEST_F(CliBudget, TheFloorThatPlanNamesIsEnoughToTrain) {
  const int64_t floor = json(planning())["floor_bytes"];
  // 1 %: what design.md allows between the plan and the run.
  const std::string memory = std::to_string(floor + floor / 100);
  succeed(training("out", {"--steps", "2", "--save-every", "0", "--memory", memory}));
}

TEST_F(CliBudget, TheProcessDoesNotGrowAfterItsSecondStep) {
  succeed(training("out", {"--steps", "30", "--save-every", "0"}));
  const auto lines = log("out");
  ASSERT_EQ(lines.size(), 30u);
  const int64_t growth = lines.back()["process_peak_bytes"].get<int64_t>() -
                         lines[1]["process_peak_bytes"].get<int64_t>();
  EXPECT_LE(growth, 256 * kKiB);
}

TEST_F(CliBudget, SavingAndDrawingDoNotMakeTheProcessCreep) {
  succeed(training("out", {"--steps", "60", "--save-every", "5", "--sample-every", "5",
                           "--sample-steps", "2", "--count", "2"}));
  const auto lines = log("out");
  ASSERT_EQ(lines.size(), 60u);
  const int64_t growth = lines.back()["process_peak_bytes"].get<int64_t>() -
                         lines[6]["process_peak_bytes"].get<int64_t>();  // saved and drawn once
  EXPECT_LE(growth, 256 * kKiB);
}

TEST_F(CliBudget, SamplingManyPicturesStaysWithinTheBudget) {
  succeed(training("run", {"--steps", "1"}));
  for (const std::string out : {"many.npy", "many.npz", "many.png"}) {
    const Result result = run({"sample", "--from", "run", "--classes", "0", "--count", "40000",
                               "--steps", "1", "--guidance", "1", "--memory", "20M", "--out", out});
    if (result.code == 3) continue;  // refused: the promise is kept too
    EXPECT_EQ(result.code, 0) << result.story();
    EXPECT_LE(result.peak_bytes, int64_t{20} << 20) << out;
  }
}

TEST_F(CliBudget, ResumingStaysWithinTheSameBudget) {
  const int64_t planned = json(planning())["process_bytes"];
  const std::string memory = std::to_string(planned + planned / 2);
  succeed(training("run", {"--steps", "3", "--memory", memory}));
  const Result result = succeed({"train", "--resume", "--out", "run", "--steps", "6"});
  EXPECT_LE(result.peak_bytes, std::stoll(memory));
  EXPECT_EQ(log("run").size(), 6u);
}

}  // namespace
}  // namespace ebb::cli_fixture
