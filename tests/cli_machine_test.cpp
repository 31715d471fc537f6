// `ebb machine`, plans for the machine that a file describes, and optimizers by name.
#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliMachine : public CliTest {
 protected:
  static Args planning(const Args& more) {
    return Args{"plan", "--image-size", "8", "--batch", "4", "--json", "--memory", "60M"} +
           model() + more;
  }
  std::string described(const Args& more = {}) {
    const Result result = succeed(Args{"machine", "--json"} + more);
    spill(at("machine.json"), result.out);
    return result.out;
  }
};

TEST_F(CliMachine, PeopleSeeWhatWasMeasured) {
  const Result result = succeed({"machine"});
  for (const char* word : {"threads", "GFLOP/s", "available", "outside"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << result.story();
  }
}

TEST_F(CliMachine, TheFileOfThisMachineGivesThePlanOfThisMachine) {
  described();
  EXPECT_EQ(json(planning({"--machine", "machine.json"})), json(planning({})));
}

// Made with one thread, read by a program that would use three.
TEST_F(CliMachine, AFileOfOtherThreadsGivesTheirPlan) {
  described({"--threads", "1"});
  const Json there = json(planning({"--threads", "1"}));
  EXPECT_EQ(json(planning({"--threads", "3", "--machine", "machine.json"})), there);
  EXPECT_NE(json(planning({"--threads", "3"}))["arena_bytes"], there["arena_bytes"]);
}

TEST_F(CliMachine, TheDefaultBudgetIsThatMachines) {
  std::string text = described();
  const Json machine = Json::parse(text);
  Json smaller = machine;
  smaller["available_bytes"] = 100 << 20;
  spill(at("machine.json"), smaller.dump());
  const Json plan = json(
      Args{"plan", "--image-size", "8", "--batch", "4", "--json", "--machine", "machine.json"} +
      model());
  EXPECT_EQ(plan["budget_bytes"], (100 << 20) / 5 * 4);
}

TEST_F(CliMachine, ADiskIsPartOfIt) {
  fs::create_directory(at("disk"));
  described({"--offload", "disk"});
  const Args small = {"--memory", "1T", "--depth", "12", "--width", "64"};
  const Json plain = json(planning(small + Args{"--machine", "machine.json"}));
  const Json away = json(planning(small + Args{"--machine", "machine.json", "--offload", "disk"}));
  EXPECT_LT(away["floor_bytes"], plain["floor_bytes"]);
  expect_refused(run(planning({"--machine", "machine.json", "--offload", "elsewhere"})), 2,
                 {"--offload", "elsewhere", "machine.json"});
}

TEST_F(CliMachine, AFileThatIsDamagedOrOfOthersIsRefusedByName) {
  const Json machine = Json::parse(described());
  const auto refused = [&](const std::string& text, const std::vector<std::string>& nouns) {
    spill(at("bad.json"), text);
    expect_refused(run(planning({"--machine", "bad.json"})), 2, nouns);
  };
  const std::string whole = machine.dump();
  for (const size_t length : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    refused(whole.substr(0, length), {"bad.json"});
  }
  refused("{}", {"bad.json", "no whole description"});
  const auto changed = [&](const char* key, const Json& value) {
    Json made = machine;
    made[key] = value;
    return made.dump();
  };
  refused(changed("kernels", "SSE2, 4 lanes"), {"bad.json", "SSE2"});
  refused(changed("threads", 0), {"bad.json", "wanted 1 to"});
  refused(changed("threads", 1 << 20), {"bad.json", "wanted 1 to"});
  refused(changed("outside_bytes", -1), {"bad.json"});
  refused(changed("colour", "blue"), {"bad.json", "colour"});
  refused(changed("points", Json::array({Json::array({"gelu", 1, 1, -5})})), {"bad.json"});
  refused(changed("ebb_machine", 7), {"bad.json"});
  expect_refused(run(planning({"--machine", "absent.json"})), 2, {"absent.json"});
  expect_refused(run(planning({"--machine", "."})), 2, {});
}

// ---- optimizers ---------------------------------------------------------------------------------

class CliOptimizer : public CliTest {
 protected:
  CliOptimizer() { write_idx(); }
};

TEST_F(CliOptimizer, EachTrainsSavesAndResumesWithItsOwnState) {
  for (const std::string name : {"adamw", "lion", "adafactor"}) {
    SCOPED_TRACE(name);
    const Args args = {"--optimizer", name, "--steps", "4", "--save-every", "2"};
    succeed(training(name, args));
    succeed(training(name + "-stopped", args + Args{"--steps", "2"}));
    succeed(training(name + "-stopped", args + Args{"--resume"}));
    EXPECT_TRUE(tensors(name, 4) == tensors(name + "-stopped", 4));
    const std::string inside = slurp(checkpoint(name, 4));
    EXPECT_EQ(inside.find("\"m.") != std::string::npos, name != "adafactor");
    EXPECT_EQ(inside.find("\"v_row.") != std::string::npos, name == "adafactor");
    succeed({"sample", "--from", name, "--count", "1", "--steps", "2", "--out", name + ".png"});
  }
}

TEST_F(CliOptimizer, AnothersStateIsRefusedByName) {
  succeed(training("out", {"--optimizer", "lion", "--steps", "2", "--save-every", "2"}));
  expect_refused(run(training("out", {"--optimizer", "adafactor", "--steps", "4", "--resume"})), 5,
                 {"--optimizer lion, not adafactor"});
}

TEST_F(CliOptimizer, WhatDoesNotGoTogetherIsRefused) {
  expect_refused(run(training("out", {"--optimizer", "sgd", "--steps", "1"})), 2,
                 {"--optimizer", "sgd", "adafactor"});
  expect_refused(
      run(training("out", {"--optimizer", "adafactor", "--moments", "8bit", "--steps", "1"})), 2,
      {"--moments", "adafactor"});
  expect_refused(
      run(training("out", {"--optimizer", "adafactor", "--betas", "0.9,0.99", "--steps", "1"})), 2,
      {"--betas", "adafactor"});
}

}  // namespace
}  // namespace ebb::cli_fixture
