// The folder of a run: whose files count, who may write there, and what becomes of what is there.
#include <csignal>

#include "cli_fixture.h"
#include "state/checkpoint.h"

namespace ebb::cli_fixture {
namespace {

class CliRunFolder : public CliTest {
 protected:
  CliRunFolder() { write_idx(); }

  void train_some(int steps = 2, const Args& more = {}) const {
    succeed(training("run", Args{"--steps", std::to_string(steps), "--save-every", "1"} + more));
  }
  static Args resume(int steps) {
    return {"train", "--resume", "--out", "run", "--steps", std::to_string(steps)};
  }
  static Args draw(const std::string& from, const std::string& out) {
    return {"sample", "--from", from, "--count", "1", "--steps", "2", "--out", out};
  }
};

TEST_F(CliRunFolder, OnlyNamesThatEbbWritesAreCheckpoints) {
  train_some(2, {"--keep", "1"});
  const std::vector<std::string> kStrays = {"step-best.safetensors", "step-9.safetensors",
                                            "step-000000002-copy.safetensors",
                                            "step-0000000099.safetensors"};
  for (const std::string& name : kStrays) {
    fs::copy_file(checkpoint("run", 2), at("run/checkpoints") / name);
  }
  succeed(resume(4));
  EXPECT_TRUE(fs::exists(checkpoint("run", 4)));
  EXPECT_EQ(files_below(at("run/checkpoints")).size(), 1 + kStrays.size());
  EXPECT_TRUE(contains(succeed(draw("run", "a.png")).out, "after step 4"));
}

TEST_F(CliRunFolder, CheckpointsAreOrderedByNumber) {
  for (const int64_t step : {int64_t{999999999}, int64_t{1000000000}, int64_t{20}}) {
    spill(checkpoint("run", step), "");
  }
  const auto found = checkpoints_of(at("run"));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].step, 20);
  EXPECT_EQ(found[2].step, 1000000000);
  EXPECT_EQ(*newest_checkpoint(at("run")), checkpoint("run", 1000000000));
}

TEST_F(CliRunFolder, TwoRunsDoNotShareAFolder) {
  const Args endless = {"--steps", "10000000", "--save-every", "5", "--keep", "2"};
  Child first(training("run", endless), launch_);
  while (first.running() && !fs::exists(checkpoint("run", 5))) usleep(300);
  const std::string holder = "process " + std::to_string(first.pid());
  expect_refused(run(training("run", endless)), 5, {"--out", "run", "in use", holder});
  expect_refused(run(resume(100)), 5, {"in use", holder});
  EXPECT_TRUE(first.running());
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 128 + SIGTERM);
  const auto done = static_cast<int>(log("run").size());
  succeed(resume(done + 1));
}

TEST_F(CliRunFolder, FilesOfOthersAreNotWrittenOver) {
  for (const std::string name : {"settings.toml", "log.jsonl"}) {
    fs::create_directories(at("mine"));
    spill(at("mine/" + name), "of somebody else");
    expect_refused(run(training("mine", {"--steps", "2"})), 2, {"--out", name});
    EXPECT_EQ(files_below(at("mine")), std::vector<std::string>{name});
    EXPECT_EQ(file("mine/" + name), "of somebody else");
    fs::remove_all(at("mine"));
  }
}

TEST_F(CliRunFolder, ASecondStartKeepsWhatTheFirstHasLeft) {
  const Args settings = {"--save-every", "0", "--sample-every", "2", "--sample-steps", "1"};
  succeed(training("run", settings + Args{"--steps", "2", "--lr", "0.5"}));
  const auto before = files_below(at("run"));
  const std::string lines = file("run/log.jsonl");
  const std::string picture = file("run/samples/step-000000002.png");
  const std::string toml = file("run/settings.toml");
  const Result result = succeed(training("run", settings + Args{"--steps", "3"}));
  EXPECT_TRUE(contains(result.out, "log.jsonl is now log-1.jsonl")) << result.story();
  EXPECT_EQ(file("run/log-1.jsonl"), lines);
  EXPECT_EQ(file("run/settings-1.toml"), toml);
  EXPECT_EQ(file("run/samples-1/step-000000002.png"), picture);
  EXPECT_EQ(log("run").size(), 3u);
  succeed(training("run", settings + Args{"--steps", "1"}));
  EXPECT_EQ(file("run/log-1.jsonl"), lines);
  EXPECT_TRUE(fs::exists(at("run/log-2.jsonl")));
}

TEST_F(CliRunFolder, ALogOfSomebodyElseIsKeptOnResuming) {
  train_some();
  spill(at("run/log.jsonl"), "notes of mine\n");
  succeed(resume(3));
  EXPECT_EQ(file("run/log-1.jsonl"), "notes of mine\n");
}

TEST_F(CliRunFolder, ADamagedCheckpointIsKeptAndTheOneBeforeItTakenWhereAsked) {
  succeed(training("straight", {"--steps", "9", "--save-every", "1", "--keep", "2"}));
  train_some(5, {"--keep", "0"});
  std::string damaged = slurp(checkpoint("run", 5));
  damaged[damaged.size() - 5] ^= 0x10;
  spill(checkpoint("run", 5), damaged);
  const Result refused = run(resume(9));
  expect_refused(refused, 5, {"step-000000005.safetensors"});
  EXPECT_TRUE(contains(refused.err_line(1), "--resume-step 4")) << refused.story();
  EXPECT_TRUE(slurp(checkpoint("run", 5)) == damaged) << "it was touched";
  expect_refused(run(resume(9) + Args{"--resume-step", "7"}), 5, {"--resume-step", "step 7"});
  const Result result = succeed(resume(9) + Args{"--resume-step", "3", "--keep", "2"});
  EXPECT_TRUE(contains(result.out, "resumed after step 3")) << result.story();
  EXPECT_TRUE(slurp(at("run/checkpoints/step-000000005.safetensors.aside-1")) == damaged);
  EXPECT_TRUE(contains(result.out, "step-000000005.safetensors.aside-1")) << result.story();
  for (const int step : {8, 9}) EXPECT_EQ(tensors("run", step), tensors("straight", step));
  EXPECT_EQ(log("run").size(), 9u);
  expect_refused(run(training("other", {"--steps", "1", "--resume-step", "3"})), 2,
                 {"--resume-step"});
}

TEST_F(CliRunFolder, AMismatchNamesWhatDiffers) {
  train_some();
  expect_refused(run(resume(4) + Args{"--batch", "2"}), 5, {"--batch 4, not 2"});
  expect_refused(run(resume(4) + Args{"--seed", "7", "--width", "32", "--depth", "2"}), 5,
                 {"--seed 0, not 7", "--width 16, not 32", "--depth 1, not 2"});
  expect_refused(run(resume(4) + Args{"--objective", "flow"}), 5, {"--objective ddpm, not flow"});
}

TEST_F(CliRunFolder, ACheckpointUnderAnotherStepsNameIsRefused) {
  train_some(2, {"--keep", "0"});
  fs::copy_file(checkpoint("run", 1), checkpoint("run", 7));
  expect_refused(run(resume(9)), 5, {"step-000000007", "step 1"});
}

using Metadata = std::map<std::string, std::string>;

// Writes a checkpoint again with other metadata, or with one tensor's first value made NaN; every
// hash is right.
void rewrite(const fs::path& path, const Metadata& changes, const std::string& poisoned = "") {
  const SafetensorsReader reader(path);
  std::vector<std::string> bytes;
  std::vector<TensorData> tensors;
  bytes.reserve(reader.tensors().size());
  for (const TensorEntry& entry : reader.tensors()) {
    bytes.emplace_back(static_cast<size_t>(entry.bytes()), '\0');
    reader.read(entry, bytes.back().data(), entry.bytes());
    if (entry.name == poisoned) bytes.back().replace(0, 4, std::string("\x00\x00\xc0\x7f", 4));
    tensors.push_back({entry.name, entry.type, entry.shape, bytes.back().data()});
  }
  Metadata metadata = reader.metadata();
  std::erase_if(metadata, [](const auto& entry) { return entry.first.starts_with("xxh3."); });
  for (const auto& [key, value] : changes) metadata[key] = value;
  write_safetensors(path, tensors, metadata, true);
}

TEST_F(CliRunFolder, MetadataThatCannotBeIsRefused) {
  train_some(2, {"--keep", "1"});
  const std::string whole = slurp(checkpoint("run", 2));
  const std::string model =
      R"({"width":16,"depth":2,"heads":2,"patch":4,"image_size":8,"channels":1,"classes":4,)"
      R"("blocks":[[2],[2,128]]})";
  const std::vector<Metadata> kLies = {{{"ebb.step", "4611686018427387904"}},
                                       {{"ebb.samples", "0"}, {"ebb.step", "4611686018427387904"}},
                                       {{"ebb.updates", "4611686018427387904"}},
                                       {{"ebb.model", model}}};
  for (const Metadata& lies : kLies) {
    rewrite(checkpoint("run", 2), lies);
    const std::string key = lies.rbegin()->first;
    expect_refused(run(resume(4)), 5, {"step-000000002", key});
    expect_refused(run(draw("run", "a.png")), 5, {"step-000000002", key});
    spill(checkpoint("run", 2), whole);
  }
  // A digit that was changed without the hash.
  std::string bytes = whole;
  const size_t at = bytes.find("\"ebb.seed\":\"0\"");
  bytes[at + 12] = '1';
  spill(checkpoint("run", 2), bytes);
  expect_refused(run(resume(4) + Args{"--seed", "1"}), 5, {"step-000000002", "metadata", "hash"});
  EXPECT_FALSE(fs::exists(folder_ / "a.png"));
}

TEST_F(CliRunFolder, NothingIsDrawnWithWeightsThatAreNotNumbers) {
  train_some();
  rewrite(checkpoint("run", 2), {}, "ema.blocks.0.mlp.fc1.weight");
  for (const std::string out : {"a.png", "a.npz", "a.npy", "folder"}) {
    expect_refused(run(draw("run", out)), 6, {"step-000000002", "not finite"});
    EXPECT_FALSE(fs::exists(at(out))) << out;
  }
  succeed(draw("run", "raw.png") + Args{"--weights", "raw"});
  const Result result = run(resume(4));
  expect_refused(result, 6, {"ema.blocks.0.mlp.fc1.weight", "not finite"});
  EXPECT_TRUE(contains(result.err_line(1), "--resume-step 1")) << result.story();
}

}  // namespace
}  // namespace ebb::cli_fixture
