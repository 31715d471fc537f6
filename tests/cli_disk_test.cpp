// Checkpoints that are damaged, and places that cannot be written.
#include <sys/mount.h>

#include "cli_fixture.h"
#include "formats/safetensors.h"

namespace ebb::cli_fixture {
namespace {

class CliDisk : public CliTest {
 protected:
  CliDisk() { write_idx(); }

  // A run of `steps` steps in the folder "run", with a checkpoint of every step.
  void train_some(int steps = 2) const {
    succeed(training("run", {"--steps", std::to_string(steps), "--save-every", "1"}));
  }
  Args resume(int steps) const {
    return {"train", "--resume", "--out", "run", "--steps", std::to_string(steps)};
  }
  static Args draw(const std::string& from, const std::string& out = "grid.png") {
    return {"sample", "--from", from, "--count", "1", "--steps", "2", "--out", out};
  }
  void flip_byte(const fs::path& path, const char* tensor) const {
    int64_t position = 0;
    {
      const SafetensorsReader reader(path);
      const TensorEntry* entry = reader.find(tensor);
      ASSERT_NE(entry, nullptr);
      const int64_t data = reader.tensors().back().end - entry->begin;
      position = static_cast<int64_t>(fs::file_size(path)) - data + 1;
    }
    std::string bytes = slurp(path);
    bytes[static_cast<size_t>(position)] ^= 0x10;
    spill(path, bytes);
  }
};

TEST_F(CliDisk, ATruncatedCheckpointIsRefused) {
  train_some();
  const auto size = fs::file_size(checkpoint("run", 2));
  for (const auto cut : {size - 1, size / 2, uintmax_t{20}, uintmax_t{0}}) {
    fs::resize_file(checkpoint("run", 2), cut);
    expect_refused(run(draw("run")), 5, {"step-000000002.safetensors"});
    expect_refused(run(resume(4)), 5, {"step-000000002.safetensors"});
    expect_refused(run({"inspect", checkpoint("run", 2)}), 5, {"step-000000002.safetensors"});
  }
  EXPECT_FALSE(fs::exists(at("grid.png")));
  EXPECT_FALSE(fs::exists(checkpoint("run", 3)));
}

TEST_F(CliDisk, AForeignSafetensorsFileIsRefused) {
  fs::copy_file(fs::path(EBB_SOURCE_DIR) / "tests/golden/ddpm_small.weights.safetensors",
                at("foreign.safetensors"));
  expect_refused(run(draw("foreign.safetensors")), 5, {"foreign.safetensors", "not a checkpoint"});
  spill(at("noise.safetensors"), "certainly no safetensors file at all");
  expect_refused(run(draw("noise.safetensors")), 5, {"noise.safetensors"});
  EXPECT_FALSE(fs::exists(at("grid.png")));
}

TEST_F(CliDisk, OneFlippedByteIsFoundOnResuming) {
  train_some();
  for (const char* tensor : {"blocks.0.mlp.fc1.weight", "m.final_layer.linear.bias"}) {
    const std::string whole = slurp(checkpoint("run", 2));
    flip_byte(checkpoint("run", 2), tensor);
    expect_refused(run(resume(4)), 5, {"step-000000002.safetensors", tensor});
    expect_refused(run({"inspect", checkpoint("run", 2)}), 5, {tensor});
    spill(checkpoint("run", 2), whole);
  }
  succeed(resume(4));
}

TEST_F(CliDisk, OneFlippedByteIsFoundOnSampling) {
  train_some();
  flip_byte(checkpoint("run", 2), "ema.blocks.0.mlp.fc1.weight");
  expect_refused(run(draw("run")), 5,
                 {"step-000000002.safetensors", "ema.blocks.0.mlp.fc1.weight"});
  EXPECT_FALSE(fs::exists(at("grid.png")));
}

TEST_F(CliDisk, ResumingWithoutACheckpointIsRefused) {
  expect_refused(run(training("run", {"--steps", "2", "--resume"})), 5, {"--resume", "run"});
  EXPECT_FALSE(fs::exists(at("run")));
  expect_refused(run(draw("nosuch")), 5, {"--from", "nosuch"});
  expect_refused(run(draw("idx")), 5, {"--from", "idx"});
}

TEST_F(CliDisk, ANewRunDoesNotOverwriteAnOldOne) {
  train_some();
  const std::string settings = file("run/settings.toml");
  const std::string lines = file("run/log.jsonl");
  expect_refused(run(training("run", {"--steps", "5", "--lr", "0.5"})), 2, {"--out", "run"});
  EXPECT_EQ(file("run/settings.toml"), settings);
  EXPECT_EQ(file("run/log.jsonl"), lines);
}

TEST_F(CliDisk, AResumeThatIsRefusedLeavesTheRunAsItWas) {
  train_some();
  const std::string settings = file("run/settings.toml");
  expect_refused(run(resume(4) + Args{"--batch", "2"}), 5, {"step-000000002.safetensors", "batch"});
  EXPECT_EQ(file("run/settings.toml"), settings);
  succeed(resume(4));  // as the remedy says: with the run's own settings.toml
}

TEST_F(CliDisk, AnOutputThatCannotBeWrittenIsRefused) {
  train_some();
  spill(at("file"), "a regular file");
  const auto before = files_below(folder_);
  for (const std::string out : {"file/run", "file", "/proc/x", "/proc/x/y"}) {
    expect_refused(run(training(out, {"--steps", "2"})), 5,
                   {contains(out, "/proc") ? "/proc/x" : "file"});
  }
  for (const std::string out :
       {"file/a.png", "/proc/a.png", "nosuch/a.npz", "/proc/a.npy", "file/folder"}) {
    expect_refused(run(draw("run", out)), 5, {out.substr(0, out.find("/folder"))});
  }
  const Args plan = Args{"plan", "--image-size", "8", "--batch", "2"} + model();
  expect_refused(run(plan + Args{"--csv", "file/plan.csv"}), 5, {"file/plan.csv"});
  EXPECT_EQ(files_below(folder_), before);
  EXPECT_EQ(file("file"), "a regular file");
}

TEST_F(CliDisk, AFullDiskKeepsThePreviousCheckpoint) {
  train_some();
  const std::string whole = slurp(checkpoint("run", 2));
  Launch small = launch_;
  small.file_limit = static_cast<int64_t>(whole.size()) / 2;
  expect_refused(run(resume(5), small), 5, {"step-000000003.safetensors"});
  EXPECT_TRUE(slurp(checkpoint("run", 2)) == whole);
  EXPECT_FALSE(fs::exists(checkpoint("run", 3)));
  for (const std::string& name : files_below(folder_)) EXPECT_FALSE(name.ends_with(".tmp")) << name;
  succeed(resume(5));
  succeed(training("straight", {"--steps", "5", "--save-every", "1"}));
  expect_same_files("run/checkpoints", "straight/checkpoints");
}

TEST_F(CliDisk, AFullDiskLeavesNoHalfPicture) {
  train_some();
  Launch small = launch_;
  small.file_limit = 300;
  for (const std::string out : {"a.png", "a.npz", "a.npy"}) {
    expect_refused(run(draw("run", out), small), 5, {out});
    EXPECT_FALSE(fs::exists(at(out))) << out;
  }
}

class SmallDisk {
 public:
  explicit SmallDisk(fs::path path) : path_(std::move(path)) {
    fs::create_directories(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=512k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  fs::path path_;
  bool mounted_ = false;
};

TEST_F(CliDisk, AReallyFullDiskKeepsWhatWasSaved) {
  const SmallDisk disk(at("disk"));
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount here";
  const Result result =
      run(training("disk/run", {"--steps", "9", "--save-every", "1", "--keep", "0"}));
  expect_refused(result, 5, {"disk full"});
  EXPECT_TRUE(fs::exists(checkpoint("disk/run", 1)));
  for (const auto& entry : fs::directory_iterator(at("disk/run/checkpoints"))) {
    succeed({"inspect", entry.path()});
  }
}

TEST_F(CliDisk, ARunThatDivergesStopsAndKeepsItsLastGoodState) {
  for (const std::string objective : {"ddpm", "flow"}) {
    const std::string name = "wild_" + objective;
    const Result result = run(training(
        name, {"--steps", "500", "--save-every", "1", "--lr", "1000", "--objective", objective,
               "--no-ema-ramp"}));  // an average that is far from what has diverged
    expect_refused(result, 6, {"step", "not finite"});
    EXPECT_TRUE(contains(result.err_line(0), "loss") || contains(result.err_line(0), "gradient"));
    const auto done = static_cast<int64_t>(log(name).size());
    ASSERT_GT(done, 0) << result.story();
    EXPECT_TRUE(contains(result.err_line(1), checkpoint("", done).filename())) << result.story();
    succeed({"inspect", checkpoint(name, done)});
    EXPECT_FALSE(fs::exists(checkpoint(name, done + 1)));
    succeed(draw(name));
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
