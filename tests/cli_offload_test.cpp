// --offload: less memory than any other exact way, the same run, and directories that do not serve.
#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

// By its name among those that bound memory: what a sanitizer takes is not ours to bound.
class CliMemoryOffload : public CliTest {
 protected:
  CliMemoryOffload() {
    write_idx();
    fs::create_directory(at("disk"));
  }

  static Args wide(const Args& more = {}) {
    return Args{"--width", "128", "--depth", "6", "--heads", "2", "--batch", "8"} + more;
  }
  static Args away(const Args& more = {}) { return wide(Args{"--offload", "disk"} + more); }
  Json plan(const Args& settings) const {
    Args args = training("unused", settings);
    args[0] = "plan";
    return json(args + Args{"--json"});
  }
  static Args memory(int64_t bytes) { return {"--memory", std::to_string(bytes)}; }
};

TEST_F(CliMemoryOffload, ReachesBelowEveryOtherExactWayAndComputesTheSame) {
  const int64_t without = plan(wide())["floor_bytes"];
  const Json with = plan(away());
  const int64_t floor = with["floor_bytes"];
  EXPECT_EQ(with["disk_bytes"], 0) << "there is memory enough";
  EXPECT_LT(floor, without - (10 << 20));
  succeed(training("ample", wide({"--steps", "2", "--save-every", "2"})));
  const Result tight =
      succeed(training("tight", away(memory(floor) + Args{"--steps", "2", "--save-every", "2"})));
  EXPECT_TRUE(contains(tight.out, "offload moments, average, weights")) << tight.out;
  EXPECT_TRUE(contains(tight.out, "on disk: ")) << tight.out;
  EXPECT_LE(tight.peak_bytes, floor);
  for (const Json& line : log("tight")) EXPECT_LE(line["process_peak_bytes"], floor);
  EXPECT_TRUE(tensors("ample", 2) == tensors("tight", 2));
  EXPECT_TRUE(fs::is_empty(at("disk")));
}

TEST_F(CliMemoryOffload, ResumesFromTheDiskAndFromMemoryAlike) {
  const int64_t floor = plan(away())["floor_bytes"];
  const Args saving = {"--save-every", "2"};
  succeed(training("straight", wide(saving + Args{"--steps", "4"})));
  succeed(training("parts", away(saving + memory(floor) + Args{"--steps", "2"})));
  fs::copy(at("parts"), at("other"), fs::copy_options::recursive);
  const auto resume = [](const std::string& name, const Args& more) {
    return Args{"train", "--out", name, "--resume", "--steps", "4"} + more;
  };
  succeed(resume("parts", {}));
  succeed(resume("other", {"--memory", "1G"}));
  EXPECT_TRUE(tensors("straight", 4) == tensors("parts", 4));
  EXPECT_TRUE(tensors("straight", 4) == tensors("other", 4));
}

TEST_F(CliMemoryOffload, ADirectoryThatDoesNotServeIsRefused) {
  spill(at("file"), "a regular file");
  for (const std::string where : {"nosuch", "file", "/proc/nosuch"}) {
    expect_refused(run(training("out", wide({"--steps", "1", "--offload", where}))), 5,
                   {"--offload", where});
  }
  const Args small = memory(plan(away())["floor_bytes"]);
  const Result unwritable =
      run(training("out", wide(small + Args{"--steps", "1", "--offload", "/proc"})));
  EXPECT_EQ(unwritable.code, 5) << unwritable.story();
  EXPECT_TRUE(contains(unwritable.err, "--offload: /proc: no file can be made")) << unwritable.err;
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CliMemoryOffload, NoRoomIsFoundBeforeTheFirstStep) {
  const Args small = memory(plan(away())["floor_bytes"]);
  Launch full = launch_;
  full.file_limit = 4 << 20;
  expect_refused(run(training("out", away(small + Args{"--steps", "1"})), full), 5,
                 {"--offload", "disk", "no room for"});
  EXPECT_TRUE(fs::is_empty(at("disk")));
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CliMemoryOffload, FilesThatAreMemoryAreWarnedOf) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm here";
  const Result told = succeed(training("out", wide({"--steps", "1", "--offload", "/dev/shm"})));
  EXPECT_TRUE(contains(told.err, "warning: --offload: files in /dev/shm are memory")) << told.err;
}

}  // namespace
}  // namespace ebb::cli_fixture
