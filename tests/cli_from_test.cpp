// `ebb train --from`: a new run goes on with a checkpoint's whole state. And whoever goes on takes
// the model from the checkpoint.
#include "cli_fixture.h"
#include "state/checkpoint.h"

namespace ebb::cli_fixture {
namespace {

class CliFrom : public CliTest {
 protected:
  CliFrom() { write_idx(); }

  static Args from(const std::string& what, const std::string& out, const Args& more = {}) {
    return Args{"train", "--from", what, "--out", out} + more;
  }
  static Args resume(const std::string& out, const Args& more = {}) {
    return Args{"train", "--resume", "--out", out} + more;
  }
  static const Args& wide() {  // two blocks of 4 heads and 128 MLP units
    static const Args kWide = {"--width", "32", "--depth", "2", "--heads", "4"};
    return kWide;
  }
  CheckpointInfo info(const std::string& run_name, int64_t step) const {
    return read_info(SafetensorsReader(checkpoint(run_name, step)));
  }
};

TEST_F(CliFrom, ANewRunGoesOnWithTheBitsOfTheOldOne) {
  for (const std::string optimizer : {"adamw", "lion", "adafactor"}) {
    const std::string a = "a-" + optimizer, b = "b-" + optimizer, c = "c-" + optimizer;
    const Args settings = {"--optimizer", optimizer, "--seed", "5",      "--lr",
                           "0.01",        "--ema",   "0.9",    "--clip", "1"};
    succeed(training(a, settings + Args{"--steps", "6", "--save-every", "3", "--keep", "0"}));
    const Result r = succeed(from(checkpoint(a, 3), b, {"--steps", "5"}));
    EXPECT_TRUE(contains(r.out, "after step 3")) << r.story();
    EXPECT_EQ(log(b).size(), 2u);
    succeed(resume(b, {"--steps", "6"}));  // and is resumed like any other
    EXPECT_TRUE(slurp(checkpoint(a, 6)) == slurp(checkpoint(b, 6))) << "of " << optimizer;
    // A run's folder is its newest checkpoint.
    fs::remove(checkpoint(a, 6));
    succeed(from(a, c, {"--steps", "6"}));
    EXPECT_TRUE(tensors(b, 6) == tensors(c, 6));
  }
}

TEST_F(CliFrom, FlagsWinOverTheCheckpointsSettings) {
  succeed(training("a", {"--steps", "2", "--lr", "0.01", "--warmup", "3"}));
  spill(at("more.toml"), "clip = 0.5\nlr = 0.5\n");
  succeed(from("a", "b", {"--steps", "4", "--lr", "0.25", "--config", "more.toml"}));
  const std::string settings = file("b/settings.toml");
  for (const char* line : {"lr = 0.25\n", "clip = 0.5\n", "warmup = 3\n", "batch = 4\n"}) {
    EXPECT_TRUE(contains(settings, line)) << line << settings;
  }
  EXPECT_EQ(log("b")[0]["step"], 3);
  // Steps may be epochs, whatever the checkpoint's settings say.
  succeed(from("a", "c", {"--epochs", "1"}));
  EXPECT_EQ(log("c").back()["step"], 8);
}

TEST_F(CliFrom, OtherDataMayBeNamedAndOnlyNamedDataMayBeOther) {
  succeed(training("a", {"--steps", "2"}));
  fs::rename(at("idx"), at("first"));
  write_idx(20);
  expect_refused(run(from("a", "b", {"--steps", "4"})), 4, {"32 samples then, 20 now"});
  EXPECT_FALSE(fs::exists(at("b")));
  const Result named = succeed(from("a", "b", {"--steps", "4", "--data", "idx"}));
  EXPECT_TRUE(contains(named.out, "not the checkpoint's: 32 samples then, 20 now"))
      << named.story();
  succeed(from("a", "c", {"--steps", "4", "--data-changed", "accept"}));
  EXPECT_TRUE(tensors("b", 4) == tensors("c", 4));
}

TEST_F(CliFrom, WhatContradictsTheCheckpointIsRefusedByName) {
  succeed(training("a", {"--steps", "2"}));
  const auto refused = [&](const Args& more, const std::string& noun, int code = 5) {
    SCOPED_TRACE(testing::PrintToString(more));
    expect_refused(run(from("a", "b", Args{"--steps", "4"} + more)), code, {noun});
    EXPECT_FALSE(fs::exists(at("b")));
  };
  refused({"--width", "32"}, "--width 16, not 32");
  refused({"--depth", "2"}, "--depth 1, not 2");
  refused({"--heads", "4"}, "--heads 2, not 4");
  refused({"--shapes", "1:64"}, "--shapes 2:64, not 1:64");
  refused({"--model", "DiT-S/4"}, "--width 16, not 384");
  refused({"--objective", "flow"}, "--objective ddpm, not flow");
  refused({"--batch", "8"}, "--batch 4, not 8");
  refused({"--seed", "3"}, "--seed 0, not 3");
  refused({"--optimizer", "lion"}, "--optimizer adamw, not lion");
  refused({"--resume"}, "--from contradicts --resume", 2);
  refused({"--resume-step", "2"}, "--resume-step", 2);
  expect_refused(run(from("a", "b")), 2, {"--steps", "after step 2"});
  expect_refused(run(from("a", "a", {"--steps", "4"})), 2, {"--out", "already holds a run"});
  expect_refused(run(from("nosuch", "b", {"--steps", "4"})), 5, {"--from", "nosuch"});
  expect_refused(run(from("idx", "b", {"--steps", "4"})), 5, {"--from", "idx"});
  expect_refused(run(training("b", {"--steps", "4", "--data-changed", "accept"})), 2,
                 {"--data-changed"});
  EXPECT_FALSE(fs::exists(at("b")));
}

TEST_F(CliFrom, ADamagedCheckpointIsCodeFive) {
  succeed(training("a", {"--steps", "2"}));
  const std::string good = slurp(checkpoint("a", 2));
  for (const size_t place : {size_t{3}, size_t{200}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[place] ^= 4;
    spill(at("bad.safetensors"), bad);
    expect_refused(run(from("bad.safetensors", "b", {"--steps", "4"})), 5, {"bad.safetensors"});
    EXPECT_FALSE(fs::exists(at("b")));
  }
  for (const char* settings : {"nosuch = 1\n", "lr = \"x\"\n", "[", "batch = 0\n"}) {
    copy_with_metadata(checkpoint("a", 2), at("bad.safetensors"), {{"ebb.settings", settings}});
    expect_refused(run(from("bad.safetensors", "b", {"--steps", "4"})), 5, {"ebb.settings:1"});
  }
}

// As the library writes them.
TEST_F(CliFrom, ACheckpointWithoutSettingsWantsThemAsFlags) {
  succeed(training("a", {"--steps", "3", "--seed", "5", "--optimizer", "lion"}));
  copy_with_metadata(checkpoint("a", 3), at("l.safetensors"), {{"ebb.settings", ""}});
  expect_refused(run(from("l.safetensors", "b")), 2, {"library", "--data"});
  expect_refused(run(from("l.safetensors", "b", {"--data", "idx"})), 2, {"library", "--steps"});
  succeed(from("l.safetensors", "b", {"--data", "idx", "--steps", "6", "--sample-every", "0"}));
  succeed(resume("a", {"--steps", "6"}));
  EXPECT_TRUE(tensors("a", 6) == tensors("b", 6));
}

// ---- the model is the checkpoint's --------------------------------------------------------------

TEST_F(CliFrom, APrunedCheckpointIsGoneOnWithWhateverTheSettingsSay) {
  succeed(training("a", wide() + Args{"--steps", "3"}));
  succeed({"prune", "--from", "a", "--heads", "0.5", "--mlp", "32", "--out", "p.safetensors"});
  succeed(from("p.safetensors", "b", {"--steps", "6"}));
  EXPECT_EQ(info("b", 6).config.blocks, (std::vector<BlockShape>(2, {2, 96})));
  EXPECT_EQ(info("b", 6).pruned, read_info(SafetensorsReader(at("p.safetensors"))).pruned);
  EXPECT_TRUE(contains(file("b/settings.toml"), "shapes = \"2:96*2\"")) << file("b/settings.toml");
  // In the parent's own folder, whose settings.toml knows of no pruning.
  fs::rename(at("p.safetensors"), checkpoint("a", 3));
  succeed(resume("a", {"--steps", "6"}));
  EXPECT_TRUE(slurp(checkpoint("a", 6)) == slurp(checkpoint("b", 6)));
  succeed({"sample", "--from", "a", "--count", "1", "--steps", "2", "--out", "g.png"});
  // The command that began the run may be typed again; what it says of the blocks is refused only
  // where it says it.
  succeed(training("a", wide() + Args{"--resume", "--steps", "7"}));
  expect_refused(run(resume("a", {"--shapes", "4:128*2"})), 5, {"--shapes 2:96*2, not 4:128*2"});
  expect_refused(run(resume("a", {"--depth", "3"})), 5, {"--depth 2, not 3"});
  expect_refused(run(resume("a", {"--heads", "2"})), 5, {"--heads 4, not 2"});
}

}  // namespace
}  // namespace ebb::cli_fixture
