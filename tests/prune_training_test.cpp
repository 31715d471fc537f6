// Pruning while training: the schedule, its events, and that nothing depends on who carries them
// out or on when the process is killed.
#include <csignal>
#include <random>

#include "cli_fixture.h"
#include "prune/structure.h"
#include "state/checkpoint.h"
#include "train/prune_schedule.h"

namespace ebb::cli_fixture {
namespace {

TEST(PruneSchedule, IsCubic) {
  const PruneSchedule s{0.5, 100, 510, 100, ScoreBy::l2};
  EXPECT_EQ(s.events(), 4);  // after steps 200, 300, 400 and 500
  EXPECT_DOUBLE_EQ(s.share_after(1), 0.5 * (1 - 27.0 / 64));
  EXPECT_DOUBLE_EQ(s.share_after(2), 0.5 * (1 - 1.0 / 8));
  EXPECT_DOUBLE_EQ(s.share_after(3), 0.5 * (1 - 1.0 / 64));
  EXPECT_EQ(s.share_after(4), 0.5);
  EXPECT_EQ(s.last_due(0), 0);
  EXPECT_EQ(s.last_due(199), 0);
  EXPECT_EQ(s.last_due(200), 1);
  EXPECT_EQ(s.last_due(499), 3);
  EXPECT_EQ(s.last_due(100000), 4);
  EXPECT_TRUE(s.due(200, 0));
  EXPECT_FALSE(s.due(250, 200));
  EXPECT_TRUE(s.due(450, 300));
  EXPECT_FALSE(s.due(150, 0));
  EXPECT_TRUE(
      contains(schedule_text(s, 350), "4 events, after steps 200 to 500; 2 of them before"));
  EXPECT_FALSE(contains(schedule_text(s, 500), "before"));
}

class PruneTraining : public CliTest {
 protected:
  PruneTraining() { write_idx(); }

  // Two blocks of 4 heads and 192 MLP units: a whole number of panels, half of them too.
  static Args blocks(const std::string& out, const Args& more) {
    return training(out, Args{"--width", "32", "--depth", "2", "--heads", "4", "--shapes",
                              "4:192*2", "--ema", "0.9"} +
                             more);
  }
  static Args schedule(int begin, int end, int every, const std::string& to = "0.5") {
    return {"--prune-to",    to,
            "--prune-begin", std::to_string(begin),
            "--prune-end",   std::to_string(end),
            "--prune-every", std::to_string(every)};
  }
  static Args resume(const std::string& out, const Args& more = {}) {
    return Args{"train", "--resume", "--out", out} + more;
  }
  CheckpointInfo info(const fs::path& path) const { return read_info(SafetensorsReader(path)); }
  std::vector<BlockShape> shapes(const std::string& run_name, int64_t step) const {
    return info(checkpoint(run_name, step)).config.blocks;
  }
  size_t log_lines(const std::string& name) const {
    const std::string text = file(name + "/log.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  void wait_for_lines(const Child& child, const std::string& name, size_t lines) const {
    while (child.running() && log_lines(name) < lines) usleep(300);
  }
};

// Events after steps 4 and 6, once by the run itself and once by hand.
TEST_F(PruneTraining, IsPruningTheCheckpointAndGoingOnFromIt) {
  for (const auto& [optimizer, by] : {std::pair<std::string, std::string>("adamw", "l2"),
                                      {"adafactor", "fisher"},
                                      {"lion", "random"}}) {
    SCOPED_TRACE(by);
    const std::string name = "in-" + by, hand = "hand-" + by;
    const Args settings = {"--optimizer",  optimizer, "--seed", "7",
                           "--save-every", "2",       "--keep", "0"};
    const Result r = succeed(
        blocks(name, settings + schedule(2, 6, 2) + Args{"--prune-by", by, "--steps", "8"}));
    EXPECT_TRUE(contains(r.out, "step 4: pruned: 4 heads and ")) << r.story();
    EXPECT_TRUE(contains(r.out, "2:96*2 stay")) << r.story();
    EXPECT_EQ(log(name).size(), 8u);
    EXPECT_EQ(shapes(name, 2), (std::vector<BlockShape>(2, {4, 192})));
    EXPECT_EQ(shapes(name, 4)[0].heads, 2);
    EXPECT_EQ(shapes(name, 6), (std::vector<BlockShape>(2, {2, 96})));
    succeed(blocks(hand + "0", settings + Args{"--steps", "4"}));
    const auto prune = [&](const std::string& from, const std::string& to, const Args& amounts) {
      succeed(Args{"prune", "--from", from, "--out", to, "--by", by} + amounts +
              (by == "random" ? Args{"--seed", "7"} : Args{}));
    };
    prune(hand + "0", "p.safetensors", {"--heads", "0.4375", "--mlp", "0.4375"});
    succeed({"train", "--from", "p.safetensors", "--out", hand + "1", "--steps", "6"});
    const int64_t more = shapes(name, 4)[0].mlp - 96;
    ASSERT_GT(more, 0);
    prune(hand + "1", "q.safetensors", {"--mlp", std::to_string(more)});
    succeed({"train", "--from", "q.safetensors", "--out", hand + "2", "--steps", "8"});
    EXPECT_TRUE(tensors(name, 8) == tensors(hand + "2", 8));
    const CheckpointInfo in = info(checkpoint(name, 8)), out = info(checkpoint(hand + "2", 8));
    EXPECT_EQ(in.pruned, out.pruned);
    EXPECT_EQ(in.updates, out.updates);
    EXPECT_EQ(in.average_start, out.average_start);
    fs::remove(at("p.safetensors"));
    fs::remove(at("q.safetensors"));
  }
}

TEST_F(PruneTraining, AKilledRunEndsWithTheBitsOfOneThatWasNot) {
  constexpr size_t kSteps = 60;
  const Args settings =
      Args{"--steps", std::to_string(kSteps), "--save-every", "7", "--keep", "3"} +
      schedule(10, 50, 10);
  succeed(blocks("straight", settings));
  std::mt19937 random(std::random_device{}());
  int kills = 0;
  Args command = blocks("killed", settings);
  for (const size_t moment : {15, 20, 20, 30, 30, 40, 55}) {
    Child child(command, launch_);
    wait_for_lines(child, "killed", moment);
    usleep(random() % 60000);
    child.send(SIGKILL);
    const Result result = child.wait();
    ASSERT_TRUE(result.code == -SIGKILL || result.code == 0) << result.story();
    kills += result.code == -SIGKILL;
    command = files_below(at("killed/checkpoints")).empty() ? blocks("killed", settings)
                                                            : resume("killed");
  }
  EXPECT_GT(kills, 0) << "the run was over before it could be killed";
  succeed(command);
  expect_same_files("straight/checkpoints", "killed/checkpoints");
  EXPECT_EQ(file("straight/settings.toml"), file("killed/settings.toml"));
  const auto a = log("straight"), b = log("killed");
  ASSERT_EQ(a.size(), kSteps);
  ASSERT_EQ(b.size(), kSteps);
  for (size_t i = 0; i < kSteps; ++i) {
    for (const char* key : {"step", "loss", "lr", "grad_norm", "arena_peak_bytes"}) {
      ASSERT_EQ(a[i][key], b[i][key]) << key << " of line " << i;
    }
  }
}

// As a process leaves it that is killed after it has saved and before it has pruned.
TEST_F(PruneTraining, WhatIsDueIsDoneBeforeGoingOn) {
  const Args settings = {"--save-every", "5"};
  succeed(blocks("straight", settings + schedule(0, 10, 5) + Args{"--steps", "15"}));
  succeed(blocks("late", settings + Args{"--steps", "5"}));
  const std::string before = slurp(checkpoint("late", 5));
  // A new run leaves the other's checkpoint as it is.
  const Result begun = succeed(Args{"train", "--from", "late", "--out", "new", "--steps", "15"} +
                               schedule(0, 10, 5));
  EXPECT_TRUE(contains(begun.out, "pruned: ")) << begun.story();
  EXPECT_TRUE(slurp(checkpoint("late", 5)) == before);
  EXPECT_EQ(info(checkpoint("new", 5)).config.blocks, shapes("straight", 5));
  const Result resumed = succeed(resume("late", Args{"--steps", "15"} + schedule(0, 10, 5)));
  EXPECT_TRUE(contains(resumed.out, "pruned: ")) << resumed.story();
  for (const char* name : {"new", "late"}) {
    EXPECT_TRUE(tensors("straight", 5) == tensors(name, 5)) << name;
    EXPECT_TRUE(tensors("straight", 15) == tensors(name, 15)) << name;
  }
  EXPECT_TRUE(slurp(checkpoint("straight", 15)) == slurp(checkpoint("late", 15)));
  // A run in parts, one of which ends with an event.
  succeed(blocks("parts", settings + schedule(0, 10, 5) + Args{"--steps", "5"}));
  EXPECT_EQ(shapes("parts", 5), shapes("straight", 5));
  for (const char* steps : {"10", "12", "15"}) succeed(resume("parts", {"--steps", steps}));
  EXPECT_TRUE(tensors("straight", 15) == tensors("parts", 15));
}

// A second schedule counts from what the first has left; a share of 0.75 leaves one head of four,
// and one of one cannot go: the blocks that shares are of are remembered.
TEST_F(PruneTraining, SharesAreOfTheModelBeforeTheFirstEvent) {
  succeed(blocks("a", Args{"--steps", "6", "--save-every", "6"} + schedule(0, 6, 3, "0.75")));
  EXPECT_EQ(shapes("a", 6), (std::vector<BlockShape>(2, {1, 48})));
  succeed(resume("a", {"--steps", "8"}));
  EXPECT_EQ(shapes("a", 8), shapes("a", 6));
  EXPECT_EQ(info(checkpoint("a", 8)).pruning.begun, (std::vector<BlockShape>(2, {4, 192})));
  succeed(blocks("b", Args{"--steps", "4", "--save-every", "4"} + schedule(0, 4, 4)));
  succeed(resume("b", Args{"--steps", "8"} + schedule(4, 8, 4)));
  EXPECT_EQ(shapes("b", 8)[0].heads, 1);
  EXPECT_EQ(info(checkpoint("b", 8)).pruning.begun, (std::vector<BlockShape>(2, {2, 96})));
  // What is pruned by hand besides takes the record with it.
  succeed(blocks("c", Args{"--steps", "4", "--save-every", "4"} + schedule(0, 4, 4, "0.25")));
  succeed({"prune", "--from", "c", "--heads", "1", "--out", "p.safetensors"});
  EXPECT_EQ(info(at("p.safetensors")).config.blocks[0].heads, 2);
  EXPECT_EQ(info(at("p.safetensors")).pruning.begun, (std::vector<BlockShape>(2, {4, 192})));
}

TEST_F(PruneTraining, WhatIsNoScheduleIsRefused) {
  const auto refused = [&](const Args& more, const std::vector<std::string>& nouns) {
    SCOPED_TRACE(testing::PrintToString(more));
    expect_refused(run(blocks("run", Args{"--steps", "9"} + more)), 2, nouns, Remedy::optional);
    EXPECT_FALSE(fs::exists(at("run")));
  };
  for (const char* share : {"0", "1", "1.5", "-0.1", "nan", "half"}) {
    refused(schedule(0, 8, 2, share), {"--prune-to"});
  }
  refused(schedule(4, 4, 2), {"--prune-end", "4"});
  refused(schedule(5, 4, 2), {"--prune-end"});
  refused(schedule(0, 4, 5), {"--prune-every", "5"});
  refused({"--prune-to", "0.5"}, {"--prune-to", "--prune-end"});
  refused({"--prune-to", "0.5", "--prune-end", "8"}, {"--prune-every"});
  for (const char* flag : {"--prune-begin", "--prune-end", "--prune-every"}) {
    refused({flag, "3"}, {flag});
  }
  refused({"--prune-by", "l1"}, {"--prune-by"});
  refused(schedule(0, 8, 2) + Args{"--prune-by", "l3"}, {"--prune-by", "l3"});
  refused(schedule(0, 8, 2) + Args{"--save-every", "0"}, {"--save-every 0", "--prune-to"});
  refused(schedule(0, 8, 2) + Args{"--prune-by", "fisher", "--optimizer", "lion"},
          {"--prune-by fisher", "lion"});
  refused(schedule(0, 8, 2, "0.9"), {"--prune-to", "all of", "4"});
}

TEST_F(PruneTraining, AnEventThatCannotBeWrittenLeavesTheStateBeforeIt) {
  const Args settings = Args{"--steps", "8", "--save-every", "4"} + schedule(0, 8, 4);
  succeed(blocks("straight", settings));
  // The unpruned checkpoint fits, and nothing after it: its folder cannot be written any more.
  succeed(blocks("run", Args{"--steps", "4", "--save-every", "4"}));
  const std::string whole = slurp(checkpoint("run", 4));
  Launch small = launch_;
  small.file_limit = 60'000;
  expect_refused(run(resume("run", settings), small), 5, {"step-000000004.safetensors"});
  EXPECT_TRUE(slurp(checkpoint("run", 4)) == whole);
  succeed(resume("run", settings));
  EXPECT_TRUE(tensors("straight", 8) == tensors("run", 8));
}

TEST_F(PruneTraining, ARecordThatCannotBeIsRefused) {
  succeed(blocks("a", Args{"--steps", "4", "--save-every", "4"} + schedule(0, 4, 4)));
  const fs::path path = checkpoint("a", 4);
  const std::pair<const char*, const char*> kLies[] = {
      {"ebb.prune_step", "5"},        {"ebb.prune_step", "-1"},
      {"ebb.prune_step", "0"},        {"ebb.prune_step", "x"},
      {"ebb.prune_begun", "4:192"},   {"ebb.prune_begun", "1:192*2"},
      {"ebb.prune_begun", "4:90*2"},  {"ebb.prune_begun", "4:99999999999*2"},
      {"ebb.prune_begun", "4:192*x"}, {"ebb.prune_begun", ""}};
  for (const auto& [key, value] : kLies) {
    SCOPED_TRACE(std::string(key) + " " + value);
    copy_with_metadata(path, at("bad.safetensors"), {{key, value}});
    expect_refused(run({"inspect", "bad.safetensors"}), 5, {"bad.safetensors", "ebb.prune_"});
    expect_refused(run({"train", "--from", "bad.safetensors", "--out", "b", "--steps", "8"}), 5,
                   {"bad.safetensors", "ebb.prune_"});
  }
}

// What memory a sanitizer takes is not ours to bound: ./check leaves CliMemory* out there.
class CliMemoryOfEvents : public PruneTraining {
 protected:
  static int64_t status(const Child& child, const std::string& key) {
    std::ifstream in("/proc/" + std::to_string(child.pid()) + "/status");
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(key + ":")) return std::atoll(line.c_str() + key.size() + 1) * 1024;
    }
    return 0;
  }
};

}  // namespace
}  // namespace ebb::cli_fixture
