// Ranks that each have a part of every block, as people use them.
#include <cmath>

#include "cli_ranks_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliRankParts : public CliRanks {
 protected:
  static Args wide(int steps) { return settings(steps) + Args{"--width", "32", "--heads", "4"}; }
  std::vector<float> numbers(const std::string& out, int step, const std::string& name) const {
    const std::string bytes = tensors(out, step).at(name);
    std::vector<float> all(bytes.size() / sizeof(float));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  }
  // All weights, and all moments and averages: how far they are apart, over their size.
  void expect_close(const std::string& one, const std::string& other, int step) const {
    std::map<std::string, double> off, size;
    const auto names = tensors(one, step);
    ASSERT_EQ(names.size(), tensors(other, step).size());
    for (const auto& [name, bytes] : names) {
      const std::vector<float> a = numbers(one, step, name), b = numbers(other, step, name);
      ASSERT_EQ(a.size(), b.size()) << name;
      const std::string kind = name.substr(0, name.find('.'));
      const bool weight = kind != "m" && kind != "v" && kind != "ema";
      for (size_t i = 0; i < a.size(); ++i) {
        off[weight ? "" : kind] += std::pow(static_cast<double>(a[i]) - b[i], 2);
        size[weight ? "" : kind] += std::pow(static_cast<double>(a[i]), 2);
      }
    }
    for (const auto& [kind, sum] : off) {
      EXPECT_LE(std::sqrt(sum), 1e-4 * std::sqrt(size[kind])) << kind << " of " << other;
    }
  }
};

TEST_F(CliRankParts, EveryLayoutTrainsAsOneProcessButForRounding) {
  succeed(training("one", wide(4)));
  train_over(2, "two", 4, wide(4) + Args{"--ranks", "tensor=2"});
  train_over(4, "four", 4, wide(4) + Args{"--ranks", "tensor=4", "--micro-batch", "3"});
  train_over(4, "data", 4, wide(4) + Args{"--ranks", "data=2,tensor=2", "--shard", "weights"});
  train_over(4, "pipe", 4, wide(4) + Args{"--ranks", "pipe=2,tensor=2"});
  for (const char* name : {"two", "four", "data", "pipe"}) expect_close("one", name, 4);
}

TEST_F(CliRankParts, TokensThatAreCutGiveTheSameFilesAndPictures) {
  const Args pictures = {"--sample-every", "4", "--count", "3", "--sample-steps", "4"};
  for (const char* word : {"whole", "cut"}) {
    train_over(
        2, word, 4,
        wide(4) + pictures + Args{"--ranks", "tensor=2", "--micro-batch", "3", "--tokens", word});
  }
  EXPECT_TRUE(tensors("whole", 4) == tensors("cut", 4));
  const std::string picture = "samples/step-000000004.png";
  EXPECT_TRUE(slurp(launch_.folder / "whole" / picture) == slurp(launch_.folder / "cut" / picture));
  EXPECT_NE(slurp(launch_.folder / "cut/settings.toml").find("tokens = \"cut\""),
            std::string::npos);
}

TEST_F(CliRankParts, AnyNumberGoesOnWithWhatOthersSaved) {
  succeed(training("one", wide(6)));
  train_over(2, "moving", 2, wide(2) + Args{"--ranks", "tensor=2", "--tokens", "cut"});
  train_over(4, "moving", 4, wide(4) + Args{"--ranks", "tensor=4", "--resume"});
  succeed({"train", "--out", "moving", "--resume", "--steps", "6"});
  expect_close("one", "moving", 6);
}

// What a rank lacks is brought to it, and put together.
TEST_F(CliRankParts, PicturesAreDrawnWithTheWholeModel) {
  const Args pictures = {"--sample-every", "2", "--count", "3", "--sample-steps", "4"};
  for (const Args& more :
       {Args{"--ranks", "tensor=2"}, Args{"--ranks", "pipe=2,tensor=2"},
        Args{"--ranks", "data=2,tensor=2", "--shard", "grads", "--ema-precision", "bf16"}}) {
    const std::string& name = more[1];
    train_over(name == "tensor=2" ? 2 : 4, name, 2, wide(2) + pictures + more);
    EXPECT_TRUE(fs::exists(launch_.folder / name / "samples/step-000000002.png")) << name;
  }
}

// One block, which no stages can share, and whose weights are most of what a rank holds.
TEST_F(CliRankParts, TheyAreTakenWhereNothingElseFits) {
  const Args large = {"--depth", "1", "--width", "768", "--heads", "4", "--memory"};
  const auto planned = [&](int64_t budget, const Args& layout) {
    Args plan = training("open", settings(1) + large + Args{std::to_string(budget), "--json"});
    plan[0] = "plan";
    return Json::parse(run(plan + layout).out);
  };
  const auto floor = [&](const char* layout) {
    return planned(int64_t{8} << 30, {"--ranks", layout})["floor_bytes"].get<int64_t>();
  };
  const int64_t whole = floor("data=2"), parts = floor("tensor=2");
  ASSERT_LT(parts, whole);
  EXPECT_EQ(planned(whole, {"--ranks", "auto:2"})["layout"], "data=2");
  const int64_t between = (whole + parts) / 2;
  const Json plan = planned(between, {"--ranks", "auto:2"});
  EXPECT_EQ(plan["layout"], "tensor=2");
  EXPECT_TRUE(plan["fits"].get<bool>());
  EXPECT_NE(plan["techniques"].dump().find("rounding"), std::string::npos);
  const Args budget = large + Args{std::to_string(between)};
  const Result r = run(training("open", settings(1) + budget), ranks(2));
  EXPECT_EQ(r.code, 0) << r.story();
  EXPECT_TRUE(contains(r.out, "parts of blocks")) << r.story();
  Args refused = training("open", settings(1) + large + Args{std::to_string(parts / 2)});
  refused[0] = "plan";
  expect_refused(run(refused + Args{"--ranks", "auto:2"}), 3, {"--ranks tensor=2 needs at least"});
}

TEST_F(CliRankParts, WhatGoesNotTogetherIsRefusedByName) {
  const auto refused = [&](const Args& more, const std::vector<std::string>& nouns) {
    Args plan = training("unused", wide(2) + more);
    plan[0] = "plan";
    expect_refused(run(plan), 2, nouns);
  };
  refused({"--ranks", "tensor=5"}, {"tensor=5", "4 heads"});
  refused({"--ranks", "tensor=0"}, {"tensor=0"});
  refused({"--ranks", "tensor=2", "--release", "on"}, {"--release on", "tensor=2"});
  refused({"--ranks", "tensor=2", "--precision", "bf16"}, {"--precision", "tensor=2"});
  refused({"--ranks", "tensor=2", "--optimizer", "adafactor"}, {"adafactor", "tensor=2"});
  refused({"--ranks", "tensor=2", "--shard", "grads"}, {"--shard"});
  refused({"--tokens", "cut"}, {"--tokens cut", "--ranks"});
  refused({"--ranks", "data=2", "--tokens", "cut"}, {"--tokens cut", "--ranks tensor"});
  refused({"--ranks", "tensor=4", "--tokens", "cut", "--micro-batch", "3"},
          {"--tokens cut", "--micro-batch 3", "tensor=4"});
  refused({"--ranks", "tensor=4", "--tokens", "cut", "--batch", "3"},
          {"--tokens cut", "--batch 3", "tensor=4"});
  refused({"--ranks", "data=2,tensor=4", "--tokens", "cut", "--batch", "7"},
          {"--tokens cut", "--batch 7", "tensor=4"});
  refused({"--ranks", "tensor=2", "--tokens", "cut", "--batch", "max"},
          {"--tokens cut", "--batch max"});
  refused({"--ranks", "tensor=2", "--prune-to", "0.5", "--prune-end", "2", "--prune-every", "1"},
          {"--prune-to", "tensor=2"});
  refused({"--ranks", "pipe=500,tensor=500"}, {"ranks at most"});
  refused({"--ranks", "data=2,pipe=2,tensor=2"}, {"--sum chain", "data=2,pipe=2,tensor=2"});
  expect_refused(run(training("unused", wide(2) + Args{"--ranks", "tensor=3"}), ranks(2)), 2,
                 {"--ranks", "3 processes", "found 2"});
}

TEST_F(CliRankParts, APlanSaysItOfEachRank) {
  const auto planned = [&](const Args& more) {
    return json(Args{"plan", "--model", "DiT-S/2", "--batch", "4", "--json", "--link", "10G,20us"} +
                more);
  };
  const auto state = [](const Json& plan) {
    int64_t bytes = 0;
    for (const char* kind : {"weight", "moment", "ema"}) {
      bytes += plan["peaks"][kind]["bytes"].get<int64_t>();
    }
    return static_cast<double>(bytes + plan["peaks"]["gradient"]["bytes"].get<int64_t>());
  };
  const Json one = planned({"--order", "batch"}), four = planned({"--ranks", "tensor=4"});
  EXPECT_EQ(four["layout"], "tensor=4");
  ASSERT_EQ(four["ranks"].size(), 4u);
  for (const Json& rank : four["ranks"]) EXPECT_GT(rank["sent_bytes"], 0);
  EXPECT_LE(state(four), 0.3 * state(one));
  EXPECT_NE(four["techniques"].dump().find("rounding"), std::string::npos);
}

}  // namespace
}  // namespace ebb::cli_fixture
