// Random small runs, each in a control group of exactly its budget: none is killed, none is over.
#include <random>

#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliMemoryRandom : public CliTest {
 protected:
  CliMemoryRandom() {
    write_idx();
    write_features();
    fs::create_directories(at("disk"));
    launch_.seconds = 300;  // a deep plan on a busy machine
  }

  int below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  std::string one_of(const Args& words) { return words[below(static_cast<int>(words.size()))]; }
  bool chance(int in) { return below(in) == 0; }

  // Among them deep, narrow ones, whose plans are larger than what they plan.
  Args settings() {
    Args all = {"--data",  chance(3) ? "latents" : "idx",
                "--patch", "2",
                "--seed",  std::to_string(below(1000)),
                "--batch", std::to_string(1 + below(24)),
                "--heads", one_of({"1", "2"})};
    const bool two_heads = all.back() == "2";
    const int depth = chance(4) ? 30 + below(170) : 1 + below(8);
    all = all + Args{"--depth", std::to_string(depth)};
    all = all + Args{"--width", depth > 8 ? "16" : one_of({"16", "32", "64", "96"})};
    if (chance(2)) all = all + Args{"--clip", "1"};
    if (chance(3)) all = all + Args{"--objective", "flow"};
    if (chance(4)) all = all + Args{"--ema", "0"};
    if (chance(4)) all = all + Args{"--qk-norm", one_of({"layer", "rms"})};
    if (chance(3)) all = all + Args{"--offload", at("disk").string()};
    if (chance(4)) all = all + Args{"--allow", one_of({"bf16", "adam8,ema16", "fp16,grad16"})};
    if (chance(4)) all = all + Args{"--loader-threads", "2"};
    const bool sparse = chance(5);
    if (sparse) all = all + Args{"--density", one_of({"0.5", "0.1"})};
    if (chance(5)) all = all + Args{"--l1", "0.1"};
    if (chance(5) && !sparse) all = all + Args{"--group-lasso", "0.1"};
    if (chance(4) && two_heads) {
      all = all + Args{"--prune-to", "0.5", "--prune-end", "1", "--prune-every", "1"};
    }
    all = all + (chance(3) ? Args{"--sample-every", "1", "--sample-steps", "2", "--count", "2"}
                           : Args{"--sample-every", "0"});
    return all;
  }

  static uint64_t seed() {
    const char* wanted = std::getenv("EBB_RANDOM_SEED");
    return wanted ? std::strtoull(wanted, nullptr, 10) : 14;
  }

  std::mt19937_64 random_{seed()};
};

// EBB_RANDOM_RUNS says how many, EBB_RANDOM_SEED which; a few take part in every ./check.
TEST_F(CliMemoryRandom, RunsStayWithinAControlGroupOfTheirBudget) {
  const char* wanted = std::getenv("EBB_RANDOM_RUNS");
  const int runs = wanted ? std::atoi(wanted) : 4;
  int tight = 0;
  for (int i = 0; i < runs; ++i) {
    const Args chosen = settings();
    const Json plan = json(Args{"plan", "--json", "--memory", "4G"} + chosen);
    const int64_t floor = plan["floor_bytes"], ample = plan["process_bytes"];
    const bool at_floor = chance(2);
    const int64_t budget =
        at_floor
            ? floor
            : floor + static_cast<int64_t>(random_() % static_cast<uint64_t>(ample - floor + 1));
    tight += at_floor ? 1 : 0;
    const ControlGroup group(budget);
    if (!group.why().empty()) GTEST_SKIP() << group.why();
    launch_.processes = group.processes();
    const std::string out = "run" + std::to_string(i);
    const Result result = run(Args{"train", "--out", out, "--steps", "2", "--save-every", "1",
                                   "--memory", std::to_string(budget)} +
                              chosen);
    const Result resumed = run({"train", "--resume", "--out", out, "--steps", "3"});
    launch_.processes.clear();
    SCOPED_TRACE(std::to_string(i) + " of " + std::to_string(budget) + " bytes: " + result.story());
    ASSERT_EQ(result.code, 0);
    EXPECT_EQ(resumed.code, 0) << resumed.story();
    EXPECT_EQ(group.kills(), 0);
    EXPECT_LE(log(out).back()["process_peak_bytes"], budget);
    if (wanted && i % 10 == 9) std::printf("%d of %d runs\n", i + 1, runs), std::fflush(stdout);
    EXPECT_LE(log(out).back()["arena_peak_bytes"], budget);
    fs::remove_all(at(out));
  }
  std::printf("%d runs, %d of them at the floor: none killed, none over\n", runs, tight);
}

}  // namespace
}  // namespace ebb::cli_fixture
