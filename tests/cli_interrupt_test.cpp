// Signals, and surroundings that fail: what is done is saved, and it is said at once.
#include <pty.h>

#include <chrono>
#include <csignal>

#include "cli/signals.h"
#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliInterrupt : public CliTest {
 protected:
  CliInterrupt() { write_idx(); }

  size_t log_lines(const std::string& name) const {
    const std::string text = file(name + "/log.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  void wait_for_lines(const Child& child, const std::string& name, size_t lines) const {
    while (child.running() && log_lines(name) < lines) usleep(300);
  }
  // Pictures that take minutes.
  static Args slow_drawing() {
    return {"--width",        "64", "--depth",        "8",    "--patch", "1",
            "--sample-every", "3",  "--sample-steps", "1000", "--count", "64"};
  }
  static Args endless() { return {"--steps", "10000000", "--save-every", "1000000"}; }
};

TEST_F(CliInterrupt, SavingComesBeforeDrawing) {
  Child child(training("run", Args{"--steps", "6", "--save-every", "3"} + slow_drawing()), launch_);
  while (child.running() && !fs::exists(checkpoint("run", 3))) usleep(1000);
  EXPECT_TRUE(child.running()) << "it drew first";
  EXPECT_TRUE(files_below(at("run/samples")).empty());
  child.send(SIGTERM);
  EXPECT_EQ(child.wait().code, 128 + SIGTERM);
}

TEST_F(CliInterrupt, DrawingStopsAtOnceAndWhatIsDoneIsSaved) {
  launch_.seconds = 30;  // drawing would take longer
  Child child(training("run", Args{"--steps", "6", "--save-every", "1000"} + slow_drawing()),
              launch_);
  wait_for_lines(child, "run", 3);
  usleep(200000);
  child.send(SIGINT);
  const Result result = child.wait();
  EXPECT_EQ(result.code, 128 + SIGINT) << result.story();
  EXPECT_TRUE(contains(result.err, "stopping after this step; again to stop at once"));
  EXPECT_TRUE(fs::exists(checkpoint("run", 3)));
  EXPECT_TRUE(files_below(at("run/samples")).empty());
}

TEST_F(CliInterrupt, AClosedTerminalSavesTheRunHoweverOftenItSaysSo) {
  Child child(training("run", endless()), launch_);
  wait_for_lines(child, "run", 10);
  for (int i = 0; i < 3; ++i) {
    child.send(SIGHUP);
    usleep(200);
  }
  const Result result = child.wait();
  EXPECT_EQ(result.code, 128 + SIGHUP) << result.story();
  EXPECT_TRUE(fs::exists(checkpoint("run", static_cast<int64_t>(log_lines("run")))));
}

TEST_F(CliInterrupt, ATerminalThatIsGoneCannotKeepTheRunFromSaving) {
  int master = -1, slave = -1;
  char name[64];
  ASSERT_EQ(openpty(&master, &slave, name, nullptr, nullptr), 0);
  launch_.out = name;
  Child child(training("run", endless()), launch_);
  char chunk[4096];
  while (child.running() && log_lines("run") < 10) {
    if (read(master, chunk, sizeof(chunk)) < 0) break;
  }
  close(slave);
  close(master);
  child.send(SIGHUP);
  const Result result = child.wait();
  EXPECT_EQ(result.code, 128 + SIGHUP) << result.story();
  EXPECT_TRUE(fs::exists(checkpoint("run", static_cast<int64_t>(log_lines("run")))));
}

TEST_F(CliInterrupt, AnInterruptedSampleLeavesNothingBehind) {
  succeed(training("run", {"--steps", "1", "--width", "64", "--depth", "8", "--patch", "1"}));
  const auto before = files_below(folder_);
  for (const std::string out : {"a.png", "a.npz", "a.npy", "folder"}) {
    for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
      Child child({"sample", "--from", "run", "--out", out, "--count", "64", "--steps", "1000"},
                  launch_);
      while (child.running() && !child.catches(SIGTERM)) usleep(1000);
      usleep(100000);
      child.send(signal);
      const Result result = child.wait();
      EXPECT_EQ(result.code, signal == SIGKILL ? -SIGKILL : 128 + signal) << result.story();
      EXPECT_EQ(files_below(folder_), before) << out << " after signal " << signal;
      if (signal != SIGKILL) {
        EXPECT_TRUE(contains(result.err, "stopping")) << result.story();
        EXPECT_FALSE(fs::exists(at("folder")));
      }
      fs::remove_all(at("folder"));
    }
  }
}

TEST_F(CliInterrupt, DataThatVanishesEndsTheRunWithItsStepsSaved) {
  write_features();
  const Args settings = {"--save-every", "1000000", "--keep", "1", "--objective", "flow"};
  Child child(training("run", settings + Args{"--steps", "10000000"}, "latents"), launch_);
  wait_for_lines(child, "run", 20);
  fs::rename(at("latents/x_features"), at("latents/elsewhere"));
  const Result result = child.wait();
  const auto done = static_cast<int64_t>(log_lines("run"));
  const std::string saved = checkpoint("run", done).filename();
  expect_refused(result, 4, {"x_features", "after step " + std::to_string(done), saved});
  ASSERT_TRUE(fs::exists(checkpoint("run", done)));
  fs::rename(at("latents/elsewhere"), at("latents/x_features"));
  const std::string steps = std::to_string(done + 5);
  succeed({"train", "--resume", "--out", "run", "--steps", steps});
  succeed(training("straight", settings + Args{"--steps", steps}, "latents"));
  expect_same_files("run/checkpoints", "straight/checkpoints");
}

TEST_F(CliInterrupt, ALogThatCannotBeWrittenEndsTheRunWithItsStepsSaved) {
  succeed(training("size", {"--steps", "1"}));
  // The log of so many steps outgrows a checkpoint.
  launch_.file_limit = static_cast<int64_t>(fs::file_size(checkpoint("size", 1))) + 4096;
  const Result result = run(training("run", endless()));
  expect_refused(result, 5, {"log.jsonl", "saved in"});
  // The line of the last step may be missing, or half there.
  const auto found = files_below(at("run/checkpoints"));
  ASSERT_EQ(found.size(), 1u) << result.story();
  EXPECT_TRUE(contains(result.err_line(0), found[0])) << result.story();
  launch_.file_limit = 0;
  succeed({"inspect", at("run/checkpoints") / found[0]});
}

TEST_F(CliInterrupt, ARunWhoseLastStepsWereSkippedSaysSo) {
  const Args settings = {"--lr", "1000", "--save-every", "1000000"};
  run(training("wild", settings + Args{"--steps", "500"}));
  int64_t first = 0;
  for (const Json& line : log("wild")) {
    if (first == 0 && line.contains("skipped")) first = line["step"];
  }
  ASSERT_GT(first, 0) << "it did not diverge";
  const Result result = run(training("run", settings + Args{"--steps", std::to_string(first)}));
  expect_refused(result, 6, {"not applied", checkpoint("", first).filename()});
  EXPECT_TRUE(fs::exists(checkpoint("run", first))) << result.story();
}

// Runs `act` in a process of its own, and says how it ended.
template <typename Act>
int exit_code_of(Act act) {
  const pid_t child = fork();
  if (child == 0) {
    freopen("/dev/null", "w", stderr);
    act();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Signals, ASecondOneWaitsForASaveThatIsUnderWay) {
  TempFolder folder;
  const fs::path saved = fs::path(folder.path()) / "saved";
  const int code = exit_code_of([&] {
    catch_stop_signals("stopping\n");
    {
      note_saving(true);
      raise(SIGTERM);
      raise(SIGINT);
      std::ofstream(saved) << "whole";
      note_saving(false);
    }
    _exit(1);
  });
  EXPECT_EQ(code, 128 + SIGINT);
  EXPECT_EQ(slurp(saved), "whole");
}

TEST(Signals, ASecondOneExitsAtOnceOtherwise) {
  EXPECT_EQ(exit_code_of([] {
              catch_stop_signals("stopping\n");
              note_saving(true);
              note_saving(false);
              raise(SIGINT);
              if (stop_signal() != SIGINT) _exit(1);
              raise(SIGHUP);
              raise(SIGTERM);
            }),
            128 + SIGTERM);
}

TEST(Signals, WhatNohupIgnoresStaysIgnored) {
  EXPECT_EQ(exit_code_of([] {
              signal(SIGHUP, SIG_IGN);
              catch_stop_signals("stopping\n");
              raise(SIGHUP);
              _exit(stop_signal());
            }),
            0);
}

}  // namespace
}  // namespace ebb::cli_fixture
