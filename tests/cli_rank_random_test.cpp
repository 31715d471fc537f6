// Random small runs over random layouts, each rank within its budget and as tight as can be: all
// come to an end, with the bits of one process.
#include <random>

#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

constexpr const char* kLauncher = "/usr/bin/mpiexec.mpich";

class CliRankRandom : public CliTest {
 protected:
  void SetUp() override {
    if (!fs::exists(kLauncher)) GTEST_SKIP() << "no " << kLauncher;
    write_idx();
    write_features();
    fs::create_directory(at("disk"));
  }

  int below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  std::string one_of(const Args& words) { return words[below(static_cast<int>(words.size()))]; }
  bool chance(int in) { return below(in) == 0; }

  // What one process does as well, with the same bits.
  struct Chosen {
    Args run, layout;
    int ranks = 1;
  };

  Chosen choose() {
    Chosen chosen;
    const int depth = between(1, 5), batch = between(2, 16);
    Args& all = chosen.run;
    all = {"--data",  chance(3) ? "latents" : "idx", "--patch", one_of({"2", "4"}),
           "--seed",  std::to_string(below(1000)),   "--batch", std::to_string(batch),
           "--depth", std::to_string(depth),         "--heads", one_of({"1", "2"}),
           "--width", one_of({"16", "32", "64"}),    "--lr",    one_of({"1e-4", "1e-2"})};
    if (chance(2)) all = all + Args{"--clip", one_of({"0.1", "1"})};
    if (chance(3)) all = all + Args{"--objective", "flow"};
    if (chance(4)) all = all + Args{"--ema", "0"};
    if (chance(4)) all = all + Args{"--qk-norm", one_of({"layer", "rms"})};
    if (chance(4)) all = all + Args{"--optimizer", one_of({"lion", "adafactor"})};
    if (chance(3)) all = all + Args{"--precision", one_of({"bf16", "fp16"})};
    if (chance(4) && !has(all, "--optimizer")) all = all + Args{"--moments", "8bit"};
    if (chance(5)) all = all + Args{"--ema-precision", "bf16"};
    if (chance(5)) all = all + Args{"--density", "0.5"};
    if (chance(5)) all = all + Args{"--l1", "0.1"};
    if (chance(6)) all = all + Args{"--loader-threads", "2"};
    if (chance(5)) {
      all = all + Args{"--prune-to", "0.5", "--prune-end", "1", "--prune-every", "1"};
    }
    choose_layout(chosen, depth, batch);
    return chosen;
  }

  void choose_layout(Chosen& chosen, int depth, int batch) {
    int data = 1, pipe = 1;
    const int most = chance(4) ? 8 : 4;
    while (data * pipe < 2 || data * pipe > most || pipe > depth || data > batch) {
      data = between(1, 8);
      pipe = chance(2) ? 1 : between(2, 6);
    }
    int leaves = 0;
    for (int some = data; some <= std::min(batch, 8) && (some & (some - 1)) == 0; some *= 2) {
      if (some > 1 && (leaves == 0 || chance(2))) leaves = some;
    }
    const bool tree = leaves > 0 && ((data > 1 && pipe > 1) || chance(3));
    if (data > 1 && pipe > 1 && !tree) return choose_layout(chosen, depth, batch);
    chosen.ranks = data * pipe;
    if (tree) chosen.run = chosen.run + Args{"--sum", "tree:" + std::to_string(leaves)};
    Args& words = chosen.layout;
    words = {"--ranks", "data=" + std::to_string(data) + ",pipe=" + std::to_string(pipe)};
    if (data > 1) words = words + Args{"--shard", one_of({"auto", "off", "grads", "weights"})};
    if (pipe > 1)
      words = words + Args{"--stage-order", one_of({"auto", "1f1b", "zb-h1", "zb-h1+1"})};
    const int share = batch / std::max(data, leaves);
    if (chance(2)) words = words + Args{"--micro-batch", std::to_string(between(1, share))};
    if (pipe == 1 && chance(3)) words = words + Args{"--order", one_of({"batch", "layer"})};
    if (chance(3)) words = words + Args{"--recompute", "all"};
    if (pipe == 1 && !tree && chance(3)) words = words + Args{"--release", "on"};
    if (chance(3)) words = words + Args{"--offload", at("disk").string()};
  }
  static bool has(const Args& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  }

  static Args training(const std::string& out, const Args& more) {
    return Args{"train", "--out", out, "--steps", "2", "--save-every", "2", "--sample-every", "0"} +
           more;
  }
  Result over(const Chosen& chosen, int64_t budget) const {
    Launch launch = launch_;
    launch.launcher = {kLauncher, "-n", std::to_string(chosen.ranks), EBB_PROBE, "watch", folder_};
    const Args own = {"--threads", "1", "--memory", std::to_string(budget)};
    return run(training("all", own + chosen.run + chosen.layout), launch);
  }

  // "needs at least 12.3 MiB": what that is at most, rounded as it is. What lies outside is
  // measured anew by every run.
  static int64_t floor_in(const Result& refused) {
    if (refused.code == 2) return 1 << 20;
    expect_refused(refused, 3, {"needs at least"});
    const std::string words = "needs at least ", &text = refused.err;
    const double mebibytes = std::atof(text.c_str() + text.find(words) + words.size());
    return static_cast<int64_t>((mebibytes * 1.005 + 0.5) * (1 << 20));
  }

  // Of the process with the most, as the system saw it.
  int64_t largest_peak(int ranks) const {
    int64_t most = 0;
    for (int r = 0; r < ranks; ++r) {
      const std::string noted = file("peak." + std::to_string(r));
      EXPECT_FALSE(noted.empty()) << "rank " << r;
      if (!noted.empty()) most = std::max<int64_t>(most, std::stoll(noted));
    }
    return most;
  }

  static uint64_t seed() {
    const char* wanted = std::getenv("EBB_RANDOM_SEED");
    return wanted ? std::strtoull(wanted, nullptr, 10) : 1;
  }

  std::mt19937_64 random_{seed()};
};

// EBB_RANDOM_RUNS says how many, EBB_RANDOM_SEED which; a few take part in every ./check.
TEST_F(CliRankRandom, EveryLayoutEndsWithinItsBudgetWithTheBitsOfOneProcess) {
  const char* wanted = std::getenv("EBB_RANDOM_RUNS");
  const int runs = wanted ? std::atoi(wanted) : 2;
  int tight = 0, refused = 0;
  for (int i = 0; i < runs;) {
    const Chosen chosen = choose();
    int64_t budget = (64 + int64_t{below(100)}) << 20;
    if (wanted && chance(4)) {  // to refuse takes longer than to run
      budget = floor_in(over(chosen, 1 << 20));
      ++tight;
    }
    const Result all = over(chosen, budget);
    if (all.code == 2) {  // wishes that contradict each other
      ASSERT_LT(++refused, 2 * runs + 10) << all.story();
      continue;
    }
    const Result one = run(training("one", chosen.run));
    SCOPED_TRACE(std::to_string(i) + ": " + all.story() + one.story());
    ASSERT_EQ(one.code, 0);
    ASSERT_EQ(all.code, 0);
    EXPECT_TRUE(tensors("one", 2) == tensors("all", 2));
    EXPECT_LE(largest_peak(chosen.ranks), budget);
    EXPECT_LE(log("all").back()["arena_peak_bytes"], budget);
    for (const char* name : {"one", "all"}) fs::remove_all(at(name));
    if (wanted && ++i % 10 == 0) std::printf("%d of %d runs\n", i, runs), std::fflush(stdout);
    if (!wanted) ++i;
  }
  std::printf("%d runs, %d of them at the floor; %d wishes refused\n", runs, tight, refused);
}

}  // namespace
}  // namespace ebb::cli_fixture
