// The team of threads: everyone does their part, once, whoever else asks meanwhile.
#include "base/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace ebb {
namespace {

class Team : public ::testing::Test {
 protected:
  ~Team() override { set_team_threads(before_); }
  const int before_ = team_threads();
};

// Plain memory: what each thread wrote must be seen without anything but the team's own order.
void expect_everyone_once(int threads) {
  std::vector<int> count(threads, 0);
  auto body = [&](int self) { ++count[self]; };
  on_team(threads, body);
  EXPECT_EQ(count, std::vector<int>(threads, 1));
}

TEST_F(Team, EveryoneDoesTheirPartOnce) {
  for (const int threads : {1, 2, 5, 3, 1, 8}) expect_everyone_once(threads);
}

TEST_F(Team, JobsFollowEachOtherAtOnceAndAfterAPause) {
  std::vector<int64_t> sums(3, 0);
  for (int64_t round = 1; round <= 20000; ++round) {
    auto body = [&](int self) { sums[self] += round; };
    on_team(3, body);
    if (round % 5000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(sums, std::vector<int64_t>(3, 20000LL * 20001 / 2));
}

TEST_F(Team, AJobWithinAJobIsDoneByItsCaller) {
  std::vector<std::vector<int>> count(3, std::vector<int>(4, 0));
  auto outer = [&](int self) {
    const std::thread::id caller = std::this_thread::get_id();
    auto inner = [&](int inner_self) {
      if (std::this_thread::get_id() == caller) ++count[self][inner_self];
    };
    on_team(4, inner);
  };
  on_team(3, outer);
  EXPECT_EQ(count, std::vector<std::vector<int>>(3, std::vector<int>(4, 1)));
}

TEST_F(Team, TwoCallersDoNotMeet) {
  std::atomic<int64_t> done{0};
  const auto ask = [&] {
    for (int i = 0; i < 2000; ++i) {
      auto body = [&](int) { done.fetch_add(1, std::memory_order_relaxed); };
      on_team(2, body);
    }
  };
  std::thread other(ask);
  ask();
  other.join();
  EXPECT_EQ(done.load(), 2 * 2 * 2000);
}

// In a process of its own, of which it takes every thread's CPUs.
TEST_F(Team, KeepsToItsCpus) {
  const int all = allowed_cpus();
  end_team();
  const auto child = [&](int first) {
    const pid_t pid = fork();
    if (pid == 0) {
      std::atomic<bool> kept = false;
      int other = 0, later = 0;
      std::thread before([&] {
        while (!kept) std::this_thread::yield();
        other = allowed_cpus();
      });
      keep_to_cpus(first, 1);
      kept = true;
      before.join();
      std::thread([&] { later = allowed_cpus(); }).join();
      _exit(other == later && later == allowed_cpus() ? later : 100);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(child(all - 1), 1);
  EXPECT_EQ(child(all), all) << "there is no such CPU";
}

TEST_F(Team, EndsAndComesBack) {
  set_team_threads(3);
  start_team();
  end_team();
  end_team();
  expect_everyone_once(3);
  EXPECT_EQ(team_threads(), 3);
  EXPECT_GE(allowed_cpus(), 1);
}

}  // namespace
}  // namespace ebb
