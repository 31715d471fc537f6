// A run that is interrupted, in any way and at any moment, ends with the bits of one that was not.
#include <csignal>
#include <random>

#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliResume : public CliTest {
 protected:
  CliResume() { write_idx(); }

  size_t log_lines(const std::string& name) const {
    const std::string text = file(name + "/log.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  void wait_for_lines(const Child& child, const std::string& name, size_t lines) const {
    while (child.running() && log_lines(name) < lines) usleep(300);
  }
  void expect_each_step_once(const std::string& name, size_t steps) const {
    const auto lines = log(name);
    ASSERT_EQ(lines.size(), steps) << name;
    for (size_t i = 0; i < steps; ++i) ASSERT_EQ(lines[i]["step"], i + 1) << name;
  }
  void expect_same_numbers(const std::string& left, const std::string& right,
                           const std::vector<const char*>& keys = {
                               "step", "loss", "lr", "grad_norm", "arena_peak_bytes"}) const {
    const auto a = log(left);
    const auto b = log(right);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : keys) {
        ASSERT_EQ(a[i][key], b[i][key]) << key << " of line " << i;
      }
    }
  }
  int64_t floor_with_offload(const Args& settings) const {
    Args plan = training("unused", settings + Args{"--offload", "disk", "--json"});
    plan[0] = "plan";
    return json(plan)["floor_bytes"];
  }
  static Args resume(const std::string& name) { return {"train", "--resume", "--out", name}; }
};

class CliResumeOf : public CliResume, public testing::WithParamInterface<const char*> {};

TEST_P(CliResumeOf, AKilledRunEndsWithTheBitsOfOneThatWasNot) {
  constexpr size_t kSteps = 600;
  const Args settings = {"--steps",      std::to_string(kSteps),
                         "--save-every", "7",
                         "--keep",       "2",
                         "--objective",  GetParam(),
                         "--ema",        "0.9",
                         "--clip",       "1"};
  succeed(training("straight", settings));
  std::mt19937 random(std::random_device{}());
  int kills = 0;
  Args command = training("killed", settings);
  for (const size_t moment : {20, 130, 260, 450}) {
    Child child(command, launch_);
    wait_for_lines(child, "killed", moment);
    usleep(random() % 4000);
    child.send(SIGKILL);
    const Result result = child.wait();
    ASSERT_TRUE(result.code == -SIGKILL || result.code == 0) << result.story();
    kills += result.code == -SIGKILL;
    command = resume("killed");
  }
  EXPECT_GT(kills, 0) << "the run was over before it could be killed";
  succeed(command);
  expect_same_files("straight/checkpoints", "killed/checkpoints");
  expect_each_step_once("killed", kSteps);
  expect_same_numbers("straight", "killed");
}

TEST_P(CliResumeOf, AStoppedRunSavesAndGoesOnToTheSameBits) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string name = "stopped" + std::to_string(signal);
    const std::string straight = "straight" + std::to_string(signal);
    const Args settings = {"--save-every", "1000000", "--objective", GetParam(), "--keep", "1"};
    Child child(training(name, settings + Args{"--steps", "10000000"}), launch_);
    wait_for_lines(child, name, 10);
    child.send(signal);
    const Result result = child.wait();
    EXPECT_EQ(result.code, 128 + signal) << result.story();
    const auto done = static_cast<int64_t>(log(name).size());
    EXPECT_TRUE(fs::exists(checkpoint(name, done))) << result.story();
    EXPECT_TRUE(contains(result.out, "--resume")) << result.story();
    const std::string steps = std::to_string(done + 20);
    succeed(resume(name) + Args{"--steps", steps});
    succeed(training(straight, settings + Args{"--steps", steps}));
    expect_same_files(name + "/checkpoints", straight + "/checkpoints");
    expect_each_step_once(name, static_cast<size_t>(done) + 20);
    expect_same_numbers(name, straight);
  }
}

INSTANTIATE_TEST_SUITE_P(Objectives, CliResumeOf, testing::Values("ddpm", "flow"));

TEST_F(CliResume, ARunInPartsEndsWithTheBitsOfOneInWhole) {
  const Args settings = {"--lr", "0.01", "--warmup", "5", "--ema-ramp"};
  succeed(training("parts", settings + Args{"--steps", "3"}));
  for (const char* steps : {"4", "11", "20"}) succeed(resume("parts") + Args{"--steps", steps});
  succeed(training("whole", settings + Args{"--steps", "20"}));
  EXPECT_TRUE(slurp(checkpoint("parts", 20)) == slurp(checkpoint("whole", 20)));
  expect_each_step_once("parts", 20);
  expect_same_numbers("parts", "whole");
}

TEST_F(CliResume, ARunThatIsDoneStaysAsItIs) {
  succeed(training("run", {"--steps", "5"}));
  const std::string state = slurp(checkpoint("run", 5));
  const std::string lines = file("run/log.jsonl");
  succeed(resume("run"));
  EXPECT_TRUE(slurp(checkpoint("run", 5)) == state);
  EXPECT_EQ(file("run/log.jsonl"), lines);
}

TEST_F(CliResume, PicturesDoNotChangeTheBits) {
  const Args settings = {"--steps", "12", "--save-every", "4"};
  succeed(training("quiet", settings));
  succeed(training("drawing",
                   settings + Args{"--sample-every", "3", "--sample-steps", "2", "--count", "1"}));
  EXPECT_EQ(log("quiet").back()["loss"], log("drawing").back()["loss"]);
  EXPECT_EQ(log("quiet").back()["grad_norm"], log("drawing").back()["grad_norm"]);
}

TEST_F(CliResume, ALogThatIsAheadOfTheCheckpointOrCutIsMended) {
  succeed(training("run", {"--steps", "6", "--save-every", "3"}));
  fs::remove(checkpoint("run", 6));
  const std::string lines = file("run/log.jsonl");
  spill(at("run/log.jsonl"), lines + "{\"step\":7,\"loss\":0.12");
  succeed(resume("run"));
  expect_each_step_once("run", 6);
}

TEST_F(CliResume, LeftoversOfAKilledRunAreSwept) {
  succeed(training("run", {"--steps", "2", "--sample-every", "1", "--sample-steps", "1"}));
  const std::vector<std::string> kLeftovers = {
      "run/checkpoints/.step-000000003.safetensors.999999.tmp",
      "run/samples/.step-000000003.png.999999.tmp", "run/.settings.toml.999999.tmp"};
  for (const std::string& name : kLeftovers) spill(at(name), "half");
  succeed(resume("run") + Args{"--steps", "4"});
  for (const std::string& name : kLeftovers) {
    EXPECT_FALSE(fs::exists(at(name))) << name;
    fs::remove(at(name));
  }
}

// 64 tokens of 32 numbers, 16 pictures: the work of most ops is cut.
TEST_F(CliResume, ThreadsChangeNoBit) {
  fs::create_directory(at("disk"));
  const Args settings = {"--width", "32", "--depth",      "2", "--patch", "1",
                         "--batch", "16", "--clip",       "1", "--ema",   "0.9",
                         "--steps", "4",  "--save-every", "2", "--keep",  "2"};
  succeed(training("one", settings + Args{"--threads", "1"}));
  for (const std::string threads : {"2", "3"}) {
    SCOPED_TRACE(threads);
    ASSERT_EQ(calibrate(std::stoi(threads)), 0);
    const std::string away = "away" + threads;
    succeed(training(threads, settings + Args{"--threads", threads}));
    succeed(training(away, settings + Args{"--threads", threads, "--offload", "disk", "--memory",
                                           std::to_string(floor_with_offload(
                                               settings + Args{"--threads", threads}))}));
    for (const std::string& name : {threads, away}) {
      EXPECT_TRUE(tensors("one", 4) == tensors(name, 4)) << name;
    }
    expect_same_numbers("one", threads, {"step", "loss", "lr", "grad_norm"});
    // And half of it by others.
    fs::remove(checkpoint(threads, 4));
    succeed(resume(threads) + Args{"--threads", "1"});
    EXPECT_TRUE(tensors("one", 4) == tensors(threads, 4));
  }
}

TEST_F(CliResume, ASecondSignalEndsTheRunAtOnce) {
  // Steps of half a second or so: long enough to be interrupted twice.
  Child child(training("run", {"--steps", "100000", "--width", "128", "--depth", "8", "--patch",
                               "1", "--batch", "32"}),
              launch_);
  wait_for_lines(child, "run", 1);
  usleep(5000);
  // Two signals of one kind that arrive together are one: repeated until the process is gone.
  while (child.running()) {
    child.send(SIGTERM);
    usleep(5000);
  }
  EXPECT_EQ(child.wait().code, 128 + SIGTERM);
  EXPECT_EQ(log("run").size(), 1u) << "it finished the step";
  EXPECT_TRUE(files_below(at("run/checkpoints")).empty()) << "it saved";
}

TEST_F(CliResume, ARunGoesOnFromAnotherDirectory) {
  write_idx();
  fs::create_directories(at("disk"));
  succeed(training("run", {"--steps", "2", "--offload", "disk"}));
  const std::string settings = file("run/settings.toml");
  EXPECT_TRUE(contains(settings, "data = \"" + at("idx").string() + "\"")) << settings;
  EXPECT_TRUE(contains(settings, "offload = \"" + at("disk").string() + "\"")) << settings;
  fs::create_directories(at("elsewhere"));
  launch_.folder = at("elsewhere");
  succeed({"train", "--resume", "--out", "../run", "--steps", "3"});
  EXPECT_EQ(log("run").size(), 3u);
}

}  // namespace
}  // namespace ebb::cli_fixture
