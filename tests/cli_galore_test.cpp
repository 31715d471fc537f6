// Moments in a small space, as a user asks for them: runs that stop and go on, and what is refused.
#include <csignal>

#include "cli_ranks_fixture.h"
#include "program/buffer.h"

namespace ebb::cli_fixture {
namespace {

class CliGalore : public CliTest {
 protected:
  CliGalore() { write_idx(); }

  static Args wide(const Args& more = {}) {
    return Args{"--width",  "64", "--depth",          "2", "--heads", "2",
                "--galore", "16", "--galore-refresh", "6"} +
           more;
  }
  static Args resume(const std::string& name) { return {"train", "--resume", "--out", name}; }
  Shape shape_of(const std::string& run_name, int64_t step, const std::string& tensor) const {
    const SafetensorsReader file(checkpoint(run_name, step));
    const TensorEntry* entry = file.find(tensor);
    return entry == nullptr ? Shape{} : entry->shape;
  }
};

TEST_F(CliGalore, CheckpointsHaveTheProjectorAndItsMoments) {
  succeed(training("run", wide({"--steps", "2"})));
  EXPECT_EQ(shape_of("run", 2, "blocks.0.mlp.fc1.weight"), (Shape{256, 64}));
  EXPECT_EQ(shape_of("run", 2, "q.blocks.0.mlp.fc1.weight"), (Shape{16, 64}));
  EXPECT_EQ(shape_of("run", 2, "m.blocks.0.mlp.fc1.weight"), (Shape{256, 16}));
  EXPECT_EQ(shape_of("run", 2, "v.blocks.0.mlp.fc2.weight"), (Shape{256, 16}));
  EXPECT_EQ(shape_of("run", 2, "q.blocks.0.mlp.fc1.bias"), Shape{});
  EXPECT_EQ(shape_of("run", 2, "ema.blocks.0.mlp.fc1.weight"), (Shape{256, 64}));
  EXPECT_TRUE(contains(file("run/settings.toml"), "\ngalore = 16\n"));
  const Json shown = json({"inspect", checkpoint("run", 2).string(), "--json"});
  EXPECT_TRUE(shown["tensors"].contains("q.blocks.0.mlp.fc1.weight"));
  succeed({"inspect", "run"});
  succeed({"sample", "--from", "run", "--count", "1", "--steps", "2", "--out", "grid.png"});
  succeed({"convert", "--from", "run", "--to", "weights.safetensors"});
}

TEST_F(CliGalore, ARunInPartsEndsWithTheBitsOfOneInWhole) {
  for (const Args& kind : {Args{}, Args{"--moments", "8bit", "--clip", "1"},
                           Args{"--release", "on", "--precision", "bf16"}}) {
    SCOPED_TRACE(testing::PrintToString(kind));
    fs::remove_all(at("parts"));
    fs::remove_all(at("whole"));
    succeed(training("parts", wide(kind + Args{"--steps", "3"})));
    for (const char* steps : {"6", "7", "20"}) succeed(resume("parts") + Args{"--steps", steps});
    succeed(training("whole", wide(kind + Args{"--steps", "20"})));
    EXPECT_TRUE(tensors("parts", 20) == tensors("whole", 20));
  }
}

TEST_F(CliGalore, AKilledRunEndsWithTheBitsOfOneThatWasNot) {
  const Args settings =
      wide({"--steps", "200", "--save-every", "7", "--keep", "2", "--ema", "0.9"});
  succeed(training("straight", settings));
  Args command = training("killed", settings);
  int kills = 0;
  for (const int lines : {20, 90}) {
    Child child(command, launch_);
    const auto logged = [&] {
      const std::string log = file("killed/log.jsonl");
      return std::count(log.begin(), log.end(), '\n');
    };
    while (child.running() && logged() < lines) usleep(300);
    child.send(SIGKILL);
    kills += child.wait().code == -SIGKILL;
    command = resume("killed");
  }
  EXPECT_GT(kills, 0);
  succeed(command);
  expect_same_files("straight/checkpoints", "killed/checkpoints");
}

TEST_F(CliGalore, WhatContradictsItIsRefusedByBothNames) {
  for (const char* optimizer : {"lion", "adafactor"}) {
    expect_refused(run(training("no", wide({"--steps", "1", "--optimizer", optimizer}))), 2,
                   {"--galore", "--optimizer", optimizer});
    expect_refused(
        run(training("no", {"--steps", "1", "--allow", "galore", "--optimizer", optimizer})), 2,
        {"--allow galore", "--optimizer", optimizer});
  }
  const Result plan = succeed(
      {"plan", "--model", "DiT-S/8", "--batch", "8", "--optimizer", "lion", "--classes", "4"});
  EXPECT_TRUE(contains(plan.out, "--allow adam8")) << plan.story();
  EXPECT_FALSE(contains(plan.out, "galore")) << plan.story();
  for (const char* rank : {"0", "-3", "1000000000", "two"}) {
    expect_refused(run(training("no", {"--steps", "1", "--galore", rank})), 2, {"--galore", rank},
                   Remedy::optional);
  }
  expect_refused(run(training("no", {"--steps", "1", "--galore", "16"})), 2,
                 {"--galore", "16", "1 to 15"});
  expect_refused(run(training("no", {"--steps", "1", "--galore-refresh", "50"})), 2,
                 {"--galore-refresh", "--galore"});
  expect_refused(run(training("no", {"--steps", "1", "--galore-scale", "1"})), 2,
                 {"--galore-scale", "--galore"});
  expect_refused(run(training("no", wide({"--steps", "1", "--galore-refresh", "0"}))), 2,
                 {"--galore-refresh", "0"}, Remedy::optional);
  expect_refused(run(training("no", wide({"--steps", "1", "--galore-scale", "-1"}))), 2,
                 {"--galore-scale", "-1"}, Remedy::optional);
  expect_refused(run(training("no", wide({"--steps", "9", "--prune-to", "0.5", "--prune-end", "8",
                                          "--prune-every", "2"}))),
                 2, {"--prune-to", "--galore"});
  EXPECT_FALSE(fs::exists(at("no")));
}

TEST_F(CliGalore, MomentsOfAnotherShapeAreRefusedByName) {
  const Args plain = {"--width", "64", "--depth", "2", "--heads", "2", "--steps", "2"};
  succeed(training("plain", plain));
  succeed(training("small", wide({"--steps", "2"})));
  const Args on = {"--steps", "4"};
  expect_refused(run(resume("plain") + on + Args{"--galore", "16"}), 5, {"--galore off, not 16"});
  expect_refused(run(resume("plain") + on + Args{"--galore", "on"}), 5, {"--galore off, not on"});
  expect_refused(run(resume("small") + on + Args{"--galore", "off"}), 5, {"--galore 16, not off"});
  expect_refused(run(resume("small") + on + Args{"--galore", "8"}), 5, {"--galore 16, not 8"});
  // Allowed is not asked for: the checkpoint says it.
  succeed(resume("plain") + on + Args{"--allow", "galore"});
  EXPECT_EQ(shape_of("plain", 4, "q.blocks.0.mlp.fc1.weight"), Shape{});
  const Args from = {"train",   "--data", "idx",    "--sample-every", "0",
                     "--steps", "4",      "--from", "small",          "--out"};
  expect_refused(run(from + Args{"other", "--galore", "off"}), 5, {"--galore 16, not off"});
  succeed(from + Args{"next"});
  EXPECT_EQ(shape_of("next", 4, "q.blocks.0.mlp.fc1.weight"), (Shape{16, 64}));
}

TEST_F(CliGalore, PruningCutsTheMomentsWithTheMatrix) {
  succeed(training("run", wide({"--steps", "3"})));
  const Args prune = {"prune", "--from", "run"};
  succeed(prune + Args{"--mlp", "64", "--out", "p.safetensors"});
  const SafetensorsReader file(at("p.safetensors"));
  EXPECT_EQ(file.find("m.blocks.0.mlp.fc1.weight")->shape, (Shape{192, 16}));
  EXPECT_EQ(file.find("q.blocks.0.mlp.fc1.weight")->shape, (Shape{16, 64}));
  EXPECT_EQ(file.find("v.blocks.0.mlp.fc2.weight")->shape, (Shape{192, 16}));
  const Args next = {"train",   "--data", "idx",    "--sample-every", "0", "--out", "next",
                     "--steps", "8",      "--from", "p.safetensors"};
  succeed(next);
  EXPECT_EQ(shape_of("next", 8, "m.blocks.0.mlp.fc1.weight"), (Shape{192, 16}));
  succeed(prune + Args{"--mlp", "64", "--fresh", "--out", "f.safetensors"});
  succeed({"train", "--data", "idx", "--sample-every", "0", "--out", "fresh", "--steps", "8",
           "--from", "f.safetensors"});
  // Of qkv with one head of two there are more rows than columns still; of proj there are fewer
  // columns than rows: the projector is of its columns, as before.
  succeed(prune + Args{"--heads", "1", "--out", "h.safetensors"});
  const SafetensorsReader heads(at("h.safetensors"));
  EXPECT_EQ(heads.find("q.blocks.0.attn.proj.weight")->shape, (Shape{16, 32}));
  EXPECT_EQ(heads.find("m.blocks.0.attn.proj.weight")->shape, (Shape{64, 16}));
  // Where the other side becomes the shorter one, the projector is of the wrong one.
  expect_refused(run(prune + Args{"--mlp", "224", "--out", "no.safetensors"}), 2,
                 {"mlp.fc", "--galore 16"});
  expect_refused(run(prune + Args{"--weights", "0.5", "--out", "no.safetensors"}), 2,
                 {"--weights", "--galore 16"});
  expect_refused(run(prune + Args{"--heads", "1", "--by", "fisher", "--out", "no.safetensors"}), 2,
                 {"--by fisher", "--galore"});
  expect_refused(run(prune + Args{"--mlp", "64", "--memory", "1G", "--galore", "off", "--out",
                                  "no.safetensors"}),
                 2, {"--galore", "rank 16"});
  EXPECT_FALSE(fs::exists(at("no.safetensors")));
}

// By its name among those that bound memory: what a sanitizer takes is not ours to bound.
class CliMemoryGalore : public CliGalore {};

TEST_F(CliMemoryGalore, TheLedgerSaysWhatMomentsTakeAndTheRunTakesNoMore) {
  const auto planned = [&](const Args& more) {
    Args args = training("unused", {"--width", "256", "--depth", "2", "--heads", "4"});
    args[0] = "plan";
    return json(args + more + Args{"--json"});
  };
  const Json plain = planned({}), small = planned({"--galore", "on"});
  bool found = false;
  for (const Json& use : small["techniques"]) {
    if (use["name"] != "galore") continue;
    found = true;
    EXPECT_EQ(use["setting"], "rank 64");
    EXPECT_EQ(use["class"], "lossy");
  }
  EXPECT_TRUE(found) << small;
  const int64_t floor = small["floor_bytes"];
  EXPECT_LT(floor, plain["floor_bytes"].get<int64_t>());
  EXPECT_LT(planned({"--allow", "galore"})["floor_bytes"].get<int64_t>(),
            plain["floor_bytes"].get<int64_t>());
  const Result r =
      succeed(training("run", {"--width", "256", "--depth", "2", "--heads", "4", "--galore", "on",
                               "--steps", "5", "--memory", std::to_string(floor)}));
  for (const Json& line : log("run")) EXPECT_LE(line["process_peak_bytes"], floor) << r.story();
}

class CliRankGalore : public CliRanks {};

TEST_F(CliRankGalore, RanksHaveTheBitsOfOneProcess) {
  const Args galore = {"--galore", "4", "--galore-refresh", "5", "--ema", "0.9"};
  ASSERT_EQ(run(training("one", settings(12) + galore)).code, 0);
  train_over(2, "grads", 12, Args{"--ranks", "data=2", "--shard", "grads"} + galore);
  EXPECT_TRUE(tensors("grads", 12) == tensors("one", 12));
  train_over(2, "weights", 12, Args{"--ranks", "data=2", "--shard", "weights"} + galore);
  EXPECT_TRUE(tensors("weights", 12) == tensors("one", 12));
  train_over(2, "stages", 12, Args{"--ranks", "pipe=2"} + galore);
  EXPECT_TRUE(tensors("stages", 12) == tensors("one", 12));
}

}  // namespace
}  // namespace ebb::cli_fixture
