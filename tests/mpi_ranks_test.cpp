// Ranks that are processes, under every launcher there is: bytes, memory, CPU time, and the end of
// all when one is killed or hangs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "temp_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;

struct LauncherCase {
  const char *name, *command, *plugin;
  const char* patient;  // what keeps it from killing those that are left when one has ended
};

std::string text_of(const fs::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class MpiRanks : public ::testing::TestWithParam<LauncherCase> {
 protected:
  void SetUp() override {
    const std::string command = GetParam().command;
    const std::string program = "/usr/bin/" + command.substr(0, command.find(' '));
    if (!fs::exists(program)) GTEST_SKIP() << "no " << program;
    if (!fs::exists(fs::path(EBB_PROBE).parent_path() / GetParam().plugin)) {
      GTEST_SKIP() << GetParam().plugin << " was not built";
    }
  }
  void TearDown() override {
    if (launcher_ > 0) wait_for_launcher(0s);
    for (int r = 0; r < kRanks; ++r) {
      // A rank that is stopped outlives some launchers.
      if (!fs::exists(record("code", r)) && fs::exists(record("pid", r))) {
        if (const int pid = std::atoi(text_of(record("pid", r)).c_str())) kill(pid, SIGKILL);
      }
    }
  }

  void start(const std::string& what, const std::string& options, int timeout_ms = 60'000) {
    const std::string line = std::string("exec ") + GetParam().command + " " + options + " -n " +
                             std::to_string(kRanks) + " " + EBB_PROBE + " " + what;
    launcher_ = fork();
    if (launcher_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setenv("EBB_PROBE_TIMEOUT", std::to_string(timeout_ms).c_str(), 1);
    setenv("EBB_PROBE_RECORDS", folder_.path().c_str(), 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    const int out = open(output().c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    dup2(out, 1);
    dup2(out, 2);
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(127);
  }
  // Its code; killed if it takes longer.
  int wait_for_launcher(std::chrono::seconds most) {
    int status = 0;
    const auto until = Clock::now() + most;
    while (waitpid(launcher_, &status, WNOHANG) == 0) {
      if (Clock::now() > until) {
        kill(launcher_, SIGKILL);
        waitpid(launcher_, &status, 0);
        break;
      }
      std::this_thread::sleep_for(10ms);
    }
    launcher_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // What all ranks say; they end well.
  std::string run(const std::string& what) {
    start(what, "");
    EXPECT_EQ(wait_for_launcher(120s), 0) << story();
    for (int r = 0; r < kRanks; ++r) EXPECT_EQ(text_of(record("code", r)), "0\n") << story();
    return text_of(output());
  }

  fs::path output() const { return folder_.path() / "output"; }
  fs::path record(const char* what, int rank) const {
    return folder_.path() / (what + ("." + std::to_string(rank)));
  }
  bool appear(const char* what, int without, std::chrono::milliseconds most) const {
    for (const auto until = Clock::now() + most; Clock::now() < until;) {
      int there = 0;
      for (int r = 0; r < kRanks; ++r) there += r == without || fs::exists(record(what, r));
      if (there == kRanks) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  std::string story() const {
    std::string all = text_of(output());
    for (int r = 0; r < kRanks; ++r) {
      all += text_of(record("error", r)) + "code " + text_of(record("code", r)) + "\n";
    }
    return all;
  }
  void lose_one(int signal, uint64_t seed, bool patient);

  TempFolder folder_;
  pid_t launcher_ = 0;
};

TEST_P(MpiRanks, BytesArriveRightAndAreCounted) {
  for (const char* what : {"exchange 1", "exchange 2"}) run(what);
}

TEST_P(MpiRanks, ThoseWhoOnlyWaitLeaveTheCpuAlone) {
  const std::string said = run("idle");
  std::stringstream words(said);
  int found = 0;
  for (std::string word; words >> word;) {
    if (word != "cpu") continue;
    double seconds = 1;
    words >> seconds;
    EXPECT_LT(seconds, 0.2) << said;
    ++found;
  }
  EXPECT_EQ(found, kRanks - 1) << said;
}

TEST_P(MpiRanks, MemoryDoesNotGrowWithTraffic) {
  const std::string said = run("memory");
  std::cout << said;
  std::stringstream words(said);
  int found = 0;
  for (std::string word; words >> word;) {
    if (word != "taken") continue;
    double mebibytes = 1e9;
    words >> mebibytes;
    EXPECT_LT(mebibytes, 2) << said;
    ++found;
  }
  EXPECT_EQ(found, kRanks) << said;
}

TEST_P(MpiRanks, SizesThatDisagreeAreAnErrorOfEveryRank) {
  for (const char* more : {"1", "-1", "-2999999", "5000000"}) {
    start(std::string("disagree ") + more, GetParam().patient, 2000);
    wait_for_launcher(30s);
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_EQ(text_of(record("code", r)), "7\n") << story();
      EXPECT_NE(text_of(record("error", r)).find("but rank 0 sends 3000000 bytes"),
                std::string::npos)
          << story();
      fs::remove(record("code", r));
      fs::remove(record("error", r));
    }
  }
}

TEST_P(MpiRanks, ARankThatGivesUpTellsTheOthersWhy) {
  start("give_up", GetParam().patient);
  EXPECT_TRUE(appear("code", -1, 20s)) << story();
  wait_for_launcher(10s);
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(text_of(record("code", r)), r == kRanks - 1 ? "4\n" : "7\n") << story();
    EXPECT_NE(text_of(record("error", r)).find("photo 17"), std::string::npos) << story();
  }
}

void MpiRanks::lose_one(int signal, uint64_t seed, bool patient) {
  std::mt19937_64 random(seed);
  for (const char* what : {"code", "error", "ready", "pid"}) {
    for (int r = 0; r < kRanks; ++r) fs::remove(record(what, r));
  }
  start("endless", patient ? GetParam().patient : "", 2000);
  ASSERT_TRUE(appear("ready", -1, 30s)) << story();
  std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
  const int victim = static_cast<int>(random() % kRanks);
  const int pid = std::atoi(text_of(record("pid", victim)).c_str());
  ASSERT_GT(pid, 0);
  kill(pid, signal);
  const auto killed = Clock::now();
  EXPECT_TRUE(appear(patient ? "code" : "error", victim, 8s)) << story();
  std::cout << "rank " << victim << ": the others were gone after "
            << std::chrono::duration<double>(Clock::now() - killed).count() << " s\n";
  if (signal == SIGSTOP) kill(pid, SIGKILL);
  wait_for_launcher(10s);
  const std::string named =
      "error: ranks: rank " + std::to_string(victim) + " (pid " + std::to_string(pid) + " on ";
  for (int r = 0; r < kRanks; ++r) {
    if (r == victim) continue;
    EXPECT_NE(text_of(record("error", r)).find(named), std::string::npos) << story();
    if (!patient) continue;
    EXPECT_EQ(text_of(record("code", r)), "7\n") << story();
  }
}

// EBB_RANK_MOMENTS says at how many random moments a rank is lost; one takes part in every ./check.
uint64_t moments() {
  const char* wanted = std::getenv("EBB_RANK_MOMENTS");
  return wanted ? std::strtoull(wanted, nullptr, 10) : 1;
}

TEST_P(MpiRanks, AKilledRankEndsTheOthersByNameWithTheirCode) {
  for (uint64_t i = 0; i < moments() && !HasFailure(); ++i) lose_one(SIGKILL, i, true);
}

TEST_P(MpiRanks, AStoppedRankEndsTheOthersByNameWithTheirCode) {
  for (uint64_t i = 0; i < moments() && !HasFailure(); ++i) lose_one(SIGSTOP, 100 + i, true);
}

// Launchers as they are kill whoever is left, at once or as soon as the first one has ended: what
// the ranks have to say comes before that.
TEST_P(MpiRanks, UnderAnImpatientLauncherTheLostRankIsNamedAllTheSame) {
  for (uint64_t i = 0; i < moments() && !HasFailure(); ++i) lose_one(SIGSTOP, 200 + i, false);
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, MpiRanks,
    ::testing::Values(LauncherCase{"mpich", "mpiexec.mpich", "libebb_mpich.so",
                                   "-disable-auto-cleanup"},
                      LauncherCase{"openmpi", "mpiexec.openmpi --allow-run-as-root --oversubscribe",
                                   "libebb_openmpi.so", "--mca orte_abort_on_non_zero_status 0"}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace ebb
