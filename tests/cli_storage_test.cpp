// Numbers in fewer bits, as a user asks for them.
#include <csignal>

#include "cli_fixture.h"
#include "formats/safetensors.h"

namespace ebb::cli_fixture {
namespace {

class CliStorage : public CliTest {
 protected:
  CliStorage() { write_idx(); }

  static Args wide(const Args& more) {
    return Args{"--width", "64", "--depth", "2", "--heads", "2"} + more;
  }
  static Args planning(const Args& more) {
    Args args = training("unused", wide(more));
    args[0] = "plan";
    return args + Args{"--json"};
  }
  std::map<std::string, std::string> techniques(const Args& more) const {
    std::map<std::string, std::string> found;
    const Json plan = json(planning(more));
    for (const Json& use : plan["techniques"]) {
      found[use["name"]] = use["setting"];
      const bool stored = use["name"] == "mixed precision" || use["name"] == "moments" ||
                          use["name"] == "average" || use["name"] == "gradients";
      EXPECT_EQ(use["class"], stored ? "lossy" : "exact");
    }
    return found;
  }
  static const Args kAll;
};
const Args CliStorage::kAll = {"--precision",     "bf16", "--moments",        "8bit",
                               "--ema-precision", "bf16", "--grad-precision", "bf16"};

// By its name among those that bound memory: what a sanitizer takes is not ours to bound.
class CliMemoryStorage : public CliStorage {};

TEST_F(CliMemoryStorage, NothingLossyIsUsedUnlessItIsAllowed) {
  // Of a tiny model the plan itself takes more than what is stored.
  const Args large = {"--width", "256", "--batch", "16"};
  const int64_t floor = json(planning(large))["floor_bytes"];
  const Args tight = large + Args{"--memory", std::to_string(floor)};
  for (const char* name : {"mixed precision", "moments", "average", "gradients"}) {
    EXPECT_EQ(techniques(tight).count(name), 0u) << name;
  }
  const Args allowed = large + Args{"--allow", "bf16,adam8,ema16"};
  const int64_t lower = json(planning(allowed))["floor_bytes"];
  EXPECT_LT(lower, floor - (64 << 10));
  const auto used = techniques(allowed + Args{"--memory", std::to_string(lower)});
  EXPECT_EQ(used.at("mixed precision"), "bf16");
  EXPECT_EQ(used.at("moments"), "8-bit");
  EXPECT_EQ(used.at("average"), "bf16");
}

TEST_F(CliStorage, WhatIsForcedIsUsed) {
  const auto used = techniques(kAll);
  EXPECT_EQ(used.at("mixed precision"), "bf16");
  EXPECT_EQ(used.at("gradients"), "bf16");
  EXPECT_EQ(techniques({"--precision", "fp16"}).at("mixed precision"), "fp16");
}

TEST_F(CliStorage, UnknownWordsAreRefusedWithASuggestion) {
  expect_refused(run(training("out", {"--steps", "1", "--allow", "bf16,adam9"})), 2,
                 {"--allow", "adam9", "did you mean", "adam8"}, Remedy::optional);
  expect_refused(run(training("out", {"--steps", "1", "--allow", ","})), 2, {"--allow"},
                 Remedy::optional);
  expect_refused(run(training("out", {"--steps", "1", "--precision", "bf15"})), 2,
                 {"--precision", "bf15", "bf16"}, Remedy::optional);
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CliMemoryStorage, EveryKindTrainsWithinItsPlanAndLearns) {
  const std::vector<Args> kinds = {{"--precision", "bf16"},
                                   {"--precision", "fp16"},
                                   {"--moments", "8bit"},
                                   {"--ema-precision", "bf16", "--ema-every", "2"},
                                   kAll};
  for (size_t i = 0; i < kinds.size(); ++i) {
    SCOPED_TRACE(testing::PrintToString(kinds[i]));
    const std::string name = "run" + std::to_string(i);
    const int64_t planned = json(planning(kinds[i]))["floor_bytes"];
    const Args settings = wide(kinds[i]) + Args{"--steps",      "60",       "--lr",
                                                "3e-3",         "--memory", std::to_string(planned),
                                                "--save-every", "60"};
    const Result result = succeed(training(name, settings));
    const auto lines = log(name);
    ASSERT_EQ(lines.size(), 60u);
    for (const Json& line : lines) EXPECT_LE(line["process_peak_bytes"], planned) << line;
    const auto mean = [&](size_t first) {
      double sum = 0;
      for (size_t k = first; k < first + 10; ++k) sum += lines[k]["loss"].get<double>() / 10;
      return sum;
    };
    EXPECT_LT(mean(50), 0.9 * mean(0)) << result.story();
  }
}

// Whatever is stored, a checkpoint is fp32: another run can go on with it, and says so.
TEST_F(CliStorage, ACheckpointResumesUnderOtherTypesAndSaysWhatChanged) {
  succeed(training("run", wide({"--steps", "4", "--save-every", "2", "--ema", "0.9"})));
  const Args resume = {"train", "--resume", "--out", "run", "--steps"};
  const Result there = succeed(resume + Args{"6"} + kAll);
  EXPECT_TRUE(contains(there.out, "converted: the checkpoint's run stored fp32")) << there.story();
  EXPECT_TRUE(contains(there.out, "moments 8-bit")) << there.story();
  const Result on = succeed(resume + Args{"8"});
  EXPECT_FALSE(contains(on.out, "converted")) << on.story();
  const Result back = succeed(resume + Args{"10", "--precision", "fp32", "--moments", "fp32",
                                            "--ema-precision", "fp32", "--grad-precision", "fp32"});
  EXPECT_TRUE(contains(back.out, "this one stores fp32")) << back.story();
  const SafetensorsReader file(checkpoint("run", 10));
  for (const TensorEntry& tensor : file.tensors()) EXPECT_EQ(tensor.type, TensorType::F32);
  EXPECT_EQ(log("run").size(), 10u);
}

TEST_F(CliStorage, ALossScaleIsLeftOutWhereItIsNotNeededAndSaidSo) {
  succeed(training("run", wide({"--precision", "fp16", "--steps", "2", "--save-every", "2"})));
  const Result on =
      succeed({"train", "--resume", "--out", "run", "--steps", "4", "--precision", "bf16"});
  EXPECT_TRUE(contains(on.out, "loss scale of 65536 is for fp16 only")) << on.story();
  EXPECT_TRUE(contains(on.out, "this one stores activations bf16")) << on.story();
  const auto lines = log("run");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[1].contains("loss_scale"));
  EXPECT_FALSE(lines[2].contains("loss_scale"));
}

TEST_F(CliStorage, AKilledRunEndsWithTheBitsOfOneThatWasNot) {
  for (const Args& kind : {kAll, Args{"--precision", "fp16"}}) {
    const std::string kind_name = kind[1];
    const Args settings = wide(kind) + Args{"--steps", "12", "--save-every", "3", "--ema", "0.9"};
    succeed(training("straight" + kind_name, settings));
    Args parted = settings;
    parted[parted.size() - 5] = "6";  // --steps
    succeed(training("parted" + kind_name, parted));
    succeed({"train", "--resume", "--out", "parted" + kind_name, "--steps", "12"});
    const SafetensorsReader a(checkpoint("straight" + kind_name, 12));
    const SafetensorsReader b(checkpoint("parted" + kind_name, 12));
    for (const auto& [key, value] : a.metadata()) {
      if (!key.starts_with("xxh3.")) continue;
      EXPECT_EQ(b.metadata().at(key), value) << key;
    }
    EXPECT_EQ(a.metadata().at("ebb.loss_scale"), b.metadata().at("ebb.loss_scale"));
  }
}

// Far too large a scale at the start: halved until the gradient fits, each time without an update.
TEST_F(CliStorage, TheLossScaleIsFoundAndLogged) {
  succeed(training("run", wide({"--precision", "fp16", "--steps", "8", "--save-every", "8"})));
  double scale = 65536;
  for (const Json& line : log("run")) {
    EXPECT_EQ(line["loss_scale"], scale) << line;
    if (line.contains("skipped")) scale /= 2;
  }
  const SafetensorsReader file(checkpoint("run", 8));
  EXPECT_EQ(std::stod(file.metadata().at("ebb.loss_scale")), scale);
}

TEST_F(CliStorage, NumbersThatStayNotFiniteEndTheRunWithTheLastGoodStateKept) {
  const Result result = run(training(
      "run", {"--steps", "200", "--save-every", "1", "--lr", "1000", "--weight-decay", "1000"}));
  expect_refused(result, 6, {"step", "not finite", "times in a row"});
  EXPECT_TRUE(contains(result.out, "the update was not applied")) << result.story();
}

TEST_F(CliStorage, ADamagedLossScaleIsRefused) {
  succeed(training("run", {"--precision", "fp16", "--steps", "1", "--save-every", "1"}));
  const fs::path path = checkpoint("run", 1);
  std::string bytes = slurp(path);
  const std::string wanted = "\"ebb.loss_scale\":\"65536\"";
  const size_t place = bytes.find(wanted);
  ASSERT_NE(place, std::string::npos);
  bytes.replace(place, wanted.size(), "\"ebb.loss_scale\":\"65537\"");
  spill(path, bytes);
  expect_refused(run({"train", "--resume", "--out", "run", "--steps", "2"}), 5,
                 {"ebb.loss_scale", "65537", "power of two"}, Remedy::optional);
}

}  // namespace
}  // namespace ebb::cli_fixture
