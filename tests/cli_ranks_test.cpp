// Ranks as people use them: mpiexec -n N ebb train, and plans without a cluster.
#include <signal.h>

#include "cli_ranks_fixture.h"
#include "state/checkpoint.h"

namespace ebb::cli_fixture {
namespace {

TEST_F(CliRanks, EveryLayoutGivesTheBitsOfOneProcess) {
  succeed(training("one", settings(4)));
  train_over(2, "chain", 4, {"--ranks", "data=2", "--shard", "off"});
  train_over(4, "shared", 4, {"--ranks", "data=4", "--shard", "grads"});
  train_over(3, "stages", 4, {"--ranks", "pipe=3", "--micro-batch", "2"});
  train_over(3, "brought", 4, {"--ranks", "data=3", "--shard", "weights"});
  for (const char* name : {"chain", "shared", "stages", "brought"}) {
    EXPECT_EQ(tensors("one", 4), tensors(name, 4)) << name;
  }
}

TEST_F(CliRanks, ATreeOfSumsHasItsBitsOnAnyOfThem) {
  const Args tree = {"--sum", "tree:4"};
  succeed(training("one", settings(4) + tree + Args{"--micro-batch", "1"}));
  train_over(2, "groups", 4, tree + Args{"--ranks", "data=2"});
  train_over(4, "both", 2, tree + Args{"--ranks", "data=2,pipe=2", "--micro-batch", "1"});
  train_over(4, "both", 4, {"--ranks", "data=4", "--shard", "weights", "--resume"});
  for (const char* name : {"groups", "both"}) {
    EXPECT_EQ(tensors("one", 4), tensors(name, 4)) << name;
  }
  succeed(training("chain", settings(4)));
  EXPECT_NE(tensors("one", 4), tensors("chain", 4));
  const Args longer = {"train", "--out", "both", "--resume", "--steps", "5"};
  EXPECT_FALSE(contains(succeed(longer).err, "--sum"));
  const Args other = {"train", "--out", "both", "--resume", "--steps", "6", "--sum", "chain"};
  EXPECT_TRUE(contains(succeed(other).err, "--sum chain: the run has summed by tree:4"));
}

TEST_F(CliRanks, AnyNumberGoesOnWithWhatOthersSaved) {
  succeed(training("one", settings(6)));
  train_over(4, "moving", 2, {"--ranks", "data=4", "--shard", "grads"});
  train_over(2, "moving", 4, {"--ranks", "pipe=2", "--resume"});
  train_over(3, "moving", 6, {"--resume"});
  EXPECT_EQ(tensors("one", 6), tensors("moving", 6));
}

TEST_F(CliRanks, RoundedStorageToo) {
  const Args rounded = {"--precision", "bf16", "--moments", "8bit"};
  succeed(training("one", settings(3) + rounded + Args{"--save-every", "3"}));
  train_over(3, "shared", 3, rounded + Args{"--shard", "grads", "--save-every", "3"});
  EXPECT_EQ(tensors("one", 3), tensors("shared", 3));
}

TEST_F(CliRanks, PruningEventsAreThoseOfOneProcess) {
  const Args pruning = {"--width",     "32", "--heads",       "4", "--prune-to",    "0.5",
                        "--prune-end", "4",  "--prune-every", "2", "--prune-begin", "0"};
  succeed(training("one", settings(6) + pruning));
  train_over(2, "chain", 6, pruning + Args{"--shard", "grads"});
  train_over(3, "stages", 3, pruning + Args{"--ranks", "pipe=3"});
  train_over(2, "stages", 6, pruning + Args{"--ranks", "data=2", "--resume"});
  for (const char* name : {"chain", "stages"}) {
    EXPECT_EQ(tensors("one", 6), tensors(name, 6)) << name;
  }
}

TEST_F(CliRanks, StateOnDiskToo) {
  fs::create_directory(launch_.folder / "disk");
  const Args wide = {"--width", "192", "--heads", "4"};
  succeed(training("one", settings(2) + wide));
  Args away = wide + Args{"--ranks", "pipe=2", "--offload", (launch_.folder / "disk").string()};
  const auto planned = [&] {
    Args plan = training("stages", settings(2) + away) + Args{"--json"};
    plan[0] = "plan";
    return Json::parse(succeed(plan).out);
  };
  away = away + Args{"--memory", std::to_string(planned()["floor_bytes"].get<int64_t>())};
  EXPECT_NE(planned()["techniques"].dump().find("moments, average"), std::string::npos);
  train_over(2, "stages", 2, away);
  EXPECT_EQ(tensors("one", 2), tensors("stages", 2));
  EXPECT_TRUE(fs::is_empty(launch_.folder / "disk"));
}

TEST_F(CliRanks, DebugMemoryProvesWhatEachOfThemRuns) {
  const Args small = {"--batch", "4", "--sample-every", "1", "--count", "1", "--sample-steps", "2"};
  succeed(training("one", settings(1) + small));
  for (const char* layout : {"data=2", "pipe=2"}) {
    train_over(2, layout, 1, small + Args{"--ranks", layout, "--debug-memory"});
    EXPECT_EQ(tensors("one", 1), tensors(layout, 1)) << layout;
  }
}

TEST_F(CliRanks, PicturesAreThoseOfOneProcess) {
  const Args pictures = {"--sample-every", "2", "--count", "3", "--sample-steps", "4"};
  succeed(training("one", settings(2) + pictures));
  const auto expect_same = [&](const std::string& name, const Args& more) {
    train_over(3, name, 2, pictures + more);
    EXPECT_EQ(file("one/samples/step-000000002.png"), file(name + "/samples/step-000000002.png"));
    EXPECT_EQ(tensors("one", 2), tensors(name, 2)) << "after drawing";
  };
  for (const char* shard : {"off", "grads", "weights"}) expect_same(shard, {"--shard", shard});
  expect_same("stages", {"--ranks", "pipe=3"});
}

TEST_F(CliRanks, ASignalToOneStopsAllAfterTheSameStepSaved) {
  const std::string out = launch_.folder / "stopped";  // named in full, so that it is found
  Child child(training(out, settings(100000) + Args{"--save-every", "50000"}), ranks(2));
  const fs::path log = launch_.folder / "stopped/log.jsonl";
  while (child.running() && (!fs::exists(log) || fs::file_size(log) < 500)) usleep(10'000);
  const int rank = last_rank();
  ASSERT_GT(rank, 0);
  kill(rank, SIGTERM);
  const Result r = child.wait();
  EXPECT_TRUE(contains(r.out + r.err, "stopped by signal 15")) << r.story();
  int saved = 0;
  for (const auto& entry : fs::directory_iterator(launch_.folder / "stopped/checkpoints")) {
    saved += entry.path().extension() == ".safetensors" ? 1 : 0;
  }
  EXPECT_EQ(saved, 1);
}

TEST_F(CliRanks, DataThatOneOfThemCannotReadAnyMoreEndsAllWithTheStateSaved) {
  write_features(24);
  const auto command = [](const std::string& out, int64_t steps) {
    return training(out, settings(static_cast<int>(steps)) + Args{"--save-every", "0"}, "latents");
  };
  Child child(command("gone", 100000) + Args{"--ranks", "data=3"}, ranks(3));
  const fs::path log = at("gone/log.jsonl");
  while (child.running() && (!fs::exists(log) || fs::file_size(log) < 500)) usleep(10'000);
  fs::remove(at("latents/x_features/7.npy"));
  const Result r = child.wait();
  expect_refused(r, 4, {"7.npy", "the state after step ", "is saved in "});
  EXPECT_EQ(r.err.find("error: "), r.err.rfind("error: ")) << "said once: " << r.story();
  const auto kept = checkpoints_of(at("gone"));
  ASSERT_EQ(kept.size(), 1u) << r.story();
  const int64_t step = kept[0].step;
  write_features(24);
  succeed(command("one", step) + Args{"--save-every", std::to_string(step)});
  EXPECT_EQ(tensors("one", static_cast<int>(step)), tensors("gone", static_cast<int>(step)));
}

TEST_F(CliRanks, WhatRanksCannotDoIsRefusedByName) {
  const auto refused = [&](int n, const Args& more, const std::vector<std::string>& nouns) {
    const Result r = n == 1 ? run(training("refused", settings(2) + more))
                            : run(training("refused", settings(2) + more), ranks(n));
    expect_refused(r, 2, nouns);
    EXPECT_FALSE(fs::exists(launch_.folder / "refused")) << r.story();
  };
  refused(1, {"--ranks", "data=2"}, {"--ranks", "2 processes"});
  refused(2, {"--ranks", "data=3"}, {"--ranks", "3 processes", "found 2"});
  refused(2, {"--ranks", "pipe=2", "--order", "layer"}, {"--order layer", "pipe=2"});
  refused(4, {"--ranks", "data=2,pipe=2"}, {"--sum chain", "data=2,pipe=2"});
  refused(2, {"--ranks", "data=2", "--stage-order", "zb-h1"}, {"--stage-order zb-h1", "stages"});
  refused(3, {"--ranks", "data=3", "--sum", "tree:4"}, {"--sum tree:4", "data=3"});
  refused(1, {"--sum", "tree:3"}, {"--sum", "tree:3", "power of two"});
  refused(1, {"--sum", "tree:16"}, {"--sum tree:16", "--batch"});
  refused(1, {"--sum", "tree:2", "--release", "on"}, {"--sum tree:2", "--release on"});
  refused(2, {"--ranks", "pipe=2", "--release", "on"}, {"--release on", "pipe=2"});
  refused(2, {"--ranks", "data=2", "--micro-batch", "2", "--order", "batch"},
          {"--order batch", "data=2"});
  refused(2, {"--sum", "tree:4", "--order", "batch", "--shard", "weights"},
          {"--order batch with --shard weights", "data=2"});
  refused(2, {"--ranks", "data=2", "--batch", "1"}, {"--ranks", "--batch"});
  refused(2, {"--ranks", "nodes=2"}, {"--ranks", "nodes=2", "data=N"});
  refused(1, {"--shard", "grads"}, {"--shard"});
  refused(1, {"--link", "fast"}, {"--link", "fast"});
  Args plan = training("unused", settings(2) + Args{"--ranks", "pipe=5"});
  plan[0] = "plan";
  expect_refused(run(plan), 2, {"pipe=5", "4 blocks"});
  expect_refused(run(Args{"inspect", "."}, ranks(2)), 2, {"inspect", "one process"});
}

// The fastest layout that fits: stages wait for each other, but send little.
TEST_F(CliRanks, TheLayoutIsChosenWhereNobodyHas) {
  const auto chosen = [&](const char* link) {
    const Args model = {"--width", "64",      "--depth", "4",         "--heads",
                        "4",       "--patch", "2",       "--classes", "10"};
    const Args plan = {
        "plan",        "--batch",        "8",        "--micro-batch", "2",
        "--recompute", "none",           "--memory", "300M",          "--ranks",
        "auto:4",      "--sample-every", "0",        "--json",        "--stage-order",
        "1f1b",        "--link"};
    return json(plan + Args{link} + model)["layout"].get<std::string>();
  };
  EXPECT_EQ(chosen("100G,1us"), "data=4");
  EXPECT_EQ(chosen("10M,1us"), "pipe=4");
  succeed(training("one", settings(2)));
  train_over(2, "open", 2, {"--link", "10M,1us"});
  EXPECT_EQ(tensors("one", 2), tensors("open", 2));
}

TEST_F(CliRanks, APlanOfRanksNeedsNoneOfThem) {
  Args plan = training("unused", settings(2) + Args{"--ranks", "data=8", "--json"});
  plan[0] = "plan";
  const Json chain = json(plan);
  ASSERT_EQ(chain["ranks"].size(), 8u);
  for (const Json& rank : chain["ranks"]) {
    EXPECT_LE(rank["process_bytes"], chain["budget_bytes"]);
    EXPECT_GT(rank["sent_bytes"], 0);
  }
  const auto seconds = [&](const char* link) {
    return json(plan + Args{"--link", link})["predicted_step_seconds"].get<double>();
  };
  EXPECT_LT(seconds("100G,1us"), seconds("100M,1us"));
  EXPECT_LT(seconds("100G,1us"), seconds("100G,10ms"));
}

}  // namespace
}  // namespace ebb::cli_fixture
