// `ebb prune --by taylor|activation|fluctuation`: scores from data, as a user asks for them.
#include <cmath>

#include "cli_fixture.h"
#include "kernels/cpu/device.h"
#include "prune_fixture.h"
#include "state/checkpoint.h"

namespace ebb::cli_fixture {
namespace {

class CliPruneScores : public CliTest {
 protected:
  CliPruneScores() {
    write({info_of(config_)});
    write_idx(40, 3);
  }
  void write(const Written& w) const { write_checkpoint(at("a.safetensors"), w); }
  static Args prune(const Args& more, const std::string& out = "p.safetensors") {
    return Args{"prune", "--from", "a.safetensors", "--out", out} + more;
  }
  static Args by(const std::string& score) {
    return {"--by", score, "--data", "idx", "--samples", "16"};
  }
  void expect_not_pruned(const Args& more, int code, const std::vector<std::string>& nouns) const {
    SCOPED_TRACE(testing::PrintToString(more));
    const auto before = files_below(folder_);
    expect_refused(run(prune(more)), code, nouns);
    EXPECT_EQ(files_below(folder_), before);
  }

  const DitConfig config_ = prunable_config(3, 4);
};

TEST_F(CliPruneScores, EachScoreMakesItsOwnChoiceAndTheSameOneAgain) {
  const Args amounts = {"--heads", "0.5", "--mlp", "64", "--blocks", "1"};
  const int64_t panel = cpu_device().panel();
  std::set<std::string> files;
  for (const char* score : {"l2", "fisher"}) {
    succeed(prune(amounts + Args{"--by", score}));
    files.insert(file("p.safetensors"));
  }
  for (const char* score : {"taylor", "activation", "fluctuation"}) {
    const Result r = succeed(prune(amounts + by(score)));
    EXPECT_TRUE(contains(r.out, "from 16 samples of idx")) << r.out;
    EXPECT_EQ(contains(r.out, "biases make up"), std::string(score) == "fluctuation") << r.out;
    succeed(prune(amounts + by(score), "q.safetensors"));
    EXPECT_TRUE(file("p.safetensors") == file("q.safetensors")) << score;
    files.insert(file("p.safetensors"));
    EXPECT_EQ(read_info(SafetensorsReader(at("p.safetensors"))).config.blocks,
              (std::vector<BlockShape>(2, {2, (64 + panel - 1) / panel * panel})));
  }
  EXPECT_EQ(files.size(), 5u);
}

TEST_F(CliPruneScores, DryRunsJsonAndTargetsWorkWithThem) {
  for (const char* score : {"taylor", "fluctuation"}) {
    const Json r = json(prune({"--params", "60000", "--scope", "model", "--batch", "4", "--json"}) +
                        by(score));
    EXPECT_LE(r["params"], 60000);
  }
  const auto before = files_below(folder_);
  succeed(Args{"prune", "--from", "a.safetensors", "--heads", "1", "--dry-run"} + by("activation"));
  EXPECT_EQ(files_below(folder_), before);
}

TEST_F(CliPruneScores, DataThatIsMissingOrOfNoUseIsCodeTwo) {
  for (const char* score : {"taylor", "activation", "fluctuation"}) {
    expect_not_pruned({"--heads", "1", "--by", score}, 2, {"--by", score, "data"});
  }
  for (const char* score : {"l1", "l2", "fisher", "random"}) {
    expect_not_pruned({"--heads", "1", "--by", score, "--data", "idx"}, 2, {"--data", score});
    expect_not_pruned({"--heads", "1", "--by", score, "--samples", "8"}, 2, {"--samples", score});
  }
  expect_not_pruned({"--heads", "1", "--no-compensation"}, 2, {"--no-compensation", "l2"});
  expect_not_pruned({"--heads", "1", "--seed", "4"}, 2, {"--seed", "l2"});
  expect_not_pruned(Args{"--heads", "1", "--samples", "0"} + Args{"--by", "taylor"}, 2,
                    {"--samples"});
  expect_not_pruned({"--mask", "m.safetensors", "--data", "idx"}, 2, {"--data", "--mask"});
}

TEST_F(CliPruneScores, DataThatIsNotTheModelsIsCodeFour) {
  write_idx(40, 4);
  expect_not_pruned(Args{"--heads", "1"} + by("taylor"), 4, {"4 classes", "3"});
  write_features();
  expect_not_pruned({"--heads", "1", "--by", "activation", "--data", "latents"}, 4, {"latents"});
  expect_not_pruned({"--heads", "1", "--by", "activation", "--data", "nosuch"}, 4, {"nosuch"});
}

TEST_F(CliPruneScores, NumbersThatAreNotFiniteAreCodeSix) {
  Written w{info_of(config_)};
  w.value = [](const std::string& name, int64_t i) {
    return name == "final_layer.linear.bias" && i == 0 ? INFINITY : value_of(name, i);
  };
  write(w);
  expect_not_pruned(Args{"--heads", "1"} + by("taylor"), 6, {"final_layer.linear.bias"});
}

// Units that are constants go, and the biases take over what they gave: the model is as before.
TEST_F(CliPruneScores, CompensationMakesUpForConstantsAndCanBeLeftOut) {
  const auto constant = [](int64_t unit) { return unit % 2 == 1; };
  Written w{info_of(config_)};
  w.value = [&](const std::string& name, int64_t i) {
    if (name.ends_with("mlp.fc1.weight") && constant(i / 32)) return 0.0f;
    if (name.ends_with("mlp.fc1.bias") && constant(i)) return 2 + value_of(name, i);
    return value_of(name, i);
  };
  write(w);
  std::vector<float> x(64, 0.25f), noise(64, -0.5f);
  const std::vector<int64_t> t = {400}, y = {1};
  write_safetensors(at("b.safetensors"),
                    {{"x", TensorType::F32, {1, 1, 8, 8}, x.data()},
                     {"noise", TensorType::F32, {1, 1, 8, 8}, noise.data()},
                     {"t", TensorType::I64, {1}, t.data()},
                     {"y", TensorType::I64, {1}, y.data()}},
                    {}, false);
  const auto output = [&](const std::string& weights) {
    succeed({"grad", "--weights", weights, "--batch-file", "b.safetensors", "--out", "g"});
    return numbers(SafetensorsReader(at("g")), "output");
  };
  const auto off = [&](const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
    return most;
  };
  const std::vector<float> before = output("a.safetensors");
  succeed(prune(Args{"--mlp", "64"} + by("fluctuation")));
  EXPECT_LT(off(output("p.safetensors"), before), 1e-5);
  const Result r = succeed(prune(Args{"--mlp", "64", "--no-compensation"} + by("fluctuation")));
  EXPECT_FALSE(contains(r.out, "biases make up")) << r.out;
  EXPECT_GT(off(output("p.safetensors"), before), 1e-3);
}

// What memory a sanitizer takes is not ours to bound: ./check leaves CliMemory* out there.
class CliMemoryOfScores : public CliPruneScores {};

// 8 MB of weights. Ever smaller budgets, until one is refused: the process stays within each.
TEST_F(CliMemoryOfScores, IsWithinTheBudget) {
  DitConfig config = prunable_config(3, 6, 192);
  config.image_size = 32;
  Written w{info_of(config)};
  w.moments = w.average = false;
  w.value = [](const std::string&, int64_t i) {
    return static_cast<float>(i % 1000 - 500) * 1e-5f;
  };
  write(w);
  for (const char* score : {"taylor", "fluctuation"}) {
    int done = 0;
    // A plan for training is made too, and its target is small enough to be met by what is left.
    for (int64_t mib = 120;; mib /= 2) {
      const int64_t budget = mib << 20;
      const Result r = run(prune(
          Args{"--heads", "5", "--mlp", "0.9", "--memory", std::to_string(budget), "--batch", "1"} +
          by(score)));
      if (r.code == 3) break;
      ASSERT_EQ(r.code, 0) << r.story();
      EXPECT_LE(r.peak_bytes, budget) << r.story();
      ++done;
    }
    EXPECT_GT(done, 1) << score;
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
