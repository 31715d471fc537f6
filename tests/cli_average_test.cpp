// The averaged weights that a run keeps, and what is said of them (decision 013).
#include "cli_fixture.h"
#include "state/average.h"

namespace ebb::cli_fixture {
namespace {

class CliAverage : public CliTest {
 protected:
  CliAverage() { write_idx(); }

  std::vector<float> values(const std::string& name, int64_t step, const char* tensor) const {
    const SafetensorsReader reader(checkpoint(name, step));
    const TensorEntry* entry = reader.find(tensor);
    std::vector<float> found(static_cast<size_t>(entry->count()));
    reader.read_f32(*entry, found.data(), entry->count());
    return found;
  }
  Result draw(const std::string& from, const Args& more = {}) const {
    return succeed(
        Args{"sample", "--from", from, "--out", "a.npy", "--count", "1", "--steps", "1"} + more);
  }
};

constexpr const char* kWeight = "blocks.0.mlp.fc1.weight";
constexpr const char* kAveraged = "ema.blocks.0.mlp.fc1.weight";

TEST_F(CliAverage, TheRandomStartIsGoneFromTheAverageByDefault) {
  succeed(training("start", {"--steps", "1", "--lr", "0"}));
  succeed(training("run", {"--steps", "60", "--lr", "0.01"}));
  const auto start = values("start", 1, kWeight);
  const auto raw = values("run", 60, kWeight);
  const auto average = values("run", 60, kAveraged);
  // How far the average lies on the way back from the weights to where they began.
  double along = 0, length = 0;
  for (size_t i = 0; i < raw.size(); ++i) {
    along += double{average[i] - raw[i]} * double{start[i] - raw[i]};
    length += double{start[i] - raw[i]} * double{start[i] - raw[i]};
  }
  EXPECT_LT(along / length, 0.2);
}

TEST_F(CliAverage, TheRampIsTheDefaultUnderTheNameThatItAlwaysHad) {
  const Args settings = {"--steps", "6", "--lr", "0.01", "--ema", "0.9"};
  succeed(training("default", settings));
  succeed(training("ramp", settings + Args{"--ema-ramp"}));
  succeed(training("constant", settings + Args{"--no-ema-ramp"}));
  succeed(training("off", settings + Args{"--ema-ramp=false"}));
  expect_same_files("default/checkpoints", "ramp/checkpoints");
  expect_same_files("constant/checkpoints", "off/checkpoints");
  EXPECT_NE(values("default", 6, kAveraged), values("constant", 6, kAveraged));
  EXPECT_EQ(values("default", 6, kWeight), values("constant", 6, kWeight));
}

TEST_F(CliAverage, WithoutTheRampEveryStepCountsAsTheReferenceHasIt) {
  succeed(training("run", {"--steps", "5", "--save-every", "1", "--keep", "0", "--lr", "0.01",
                           "--ema", "0.9", "--no-ema-ramp"}));
  succeed(training("start", {"--steps", "1", "--lr", "0"}));
  auto wanted = values("start", 1, kWeight);
  for (int step = 1; step <= 5; ++step) {
    const auto raw = values("run", step, kWeight);
    for (size_t i = 0; i < raw.size(); ++i) wanted[i] = 0.9f * wanted[i] + 0.1f * raw[i];
    const auto found = values("run", step, kAveraged);
    for (size_t i = 0; i < raw.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 1e-6);
  }
}

TEST_F(CliAverage, ARunThatBeganWithoutTheRampGoesOnWithoutIt) {
  const Args settings = {"--lr", "0.01", "--ema", "0.9", "--no-ema-ramp"};
  succeed(training("parts", settings + Args{"--steps", "3"}));
  EXPECT_TRUE(contains(file("parts/settings.toml"), "\nema-ramp = false\n"));
  succeed({"train", "--resume", "--out", "parts", "--steps", "8"});
  succeed(training("whole", settings + Args{"--steps", "8"}));
  EXPECT_TRUE(slurp(checkpoint("parts", 8)) == slurp(checkpoint("whole", 8)));
}

TEST_F(CliAverage, DrawingWithAnAverageOfTheStartSaysSo) {
  succeed(training("constant", {"--steps", "5", "--ema", "0.9", "--no-ema-ramp"}));
  const Result said = draw("constant");
  EXPECT_TRUE(contains(said.out, "59 % of the random start")) << said.story();
  EXPECT_TRUE(contains(said.out, "--weights raw draws better until about step 44")) << said.story();
  EXPECT_FALSE(contains(draw("constant", {"--weights", "raw"}).out, "random start"));
  succeed(training("ramp", {"--steps", "5"}));
  EXPECT_FALSE(contains(draw("ramp").out, "random start"));
}

TEST(Average, TheStartFadesAsTheRuleSays) {
  EXPECT_NEAR(start_share({0.9999, false, 1}, 5000), 0.6065, 1e-4);
  EXPECT_NEAR(start_share({0.9999, true, 1}, 2), 1.0 / 10 * 2 / 11, 1e-12);
  EXPECT_LT(start_share({0.9999, true, 1}, 100), 1e-9);
  EXPECT_LT(start_share({1, true, 1}, 1000), 1e-9);
  EXPECT_EQ(start_share({1, false, 1}, 1000), 1);
  EXPECT_NEAR(start_share({0.9, false, 10}, 25), std::pow(0.9, 20), 1e-12);
  EXPECT_EQ(average_decay({0.9, false, 2}, 0), 1);
}

TEST(Average, TheRuleOfAnOlderCheckpointIsInItsSettings) {
  const AverageRule found = average_rule_in("# x\nema = 0.99\nema-ramp = true\nema-every = 4\n");
  EXPECT_EQ(found.decay, 0.99);
  EXPECT_TRUE(found.ramp);
  EXPECT_EQ(found.every, 4);
  EXPECT_FALSE(average_rule_in("ema = 0.5").ramp);
  EXPECT_EQ(average_rule_in("ema = cat\n").decay, AverageRule().decay);
  EXPECT_EQ(average_rule_in("ema-every = 0").every, 1);
}

}  // namespace
}  // namespace ebb::cli_fixture
