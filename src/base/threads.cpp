#include "base/threads.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace ebb {

namespace {

// Until `word` is no longer `old`. Ops follow each other within microseconds, and a thread that
// slept is woken late and often on a CPU that is taken, so the wait is awake at first. But it lets
// any other thread run that could, for that may be the one waited for; and where other programs
// want the CPU, it is better to sleep at once for a while: who wakes up is let in before them.
void wait_while(const std::atomic<uint32_t>& word, uint32_t old) {
  using Clock = std::chrono::steady_clock;
  constexpr int kSpins = 500, kSleepyWaits = 1000;
  constexpr std::chrono::microseconds kAwake{2000}, kOthersRan{300};
  thread_local int sleepy = 0;
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  if (sleepy > 0) {
    --sleepy;
  } else {
    const auto until = Clock::now() + kAwake;
    for (auto before = Clock::now(); before < until;) {
      sched_yield();
      if (word.load(std::memory_order_acquire) != old) return;
      const auto after = Clock::now();
      if (after - before > kOthersRan) {
        sleepy = kSleepyWaits;
        break;
      }
      before = after;
    }
  }
  word.wait(old, std::memory_order_acquire);
}

class Worker {
 public:
  explicit Worker(int self) : thread_([this, self] { work(self); }) {}
  ~Worker() {
    start(nullptr, nullptr);
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void start(TeamJob job, void* context) {
    job_ = job;
    context_ = context;
    asked_.fetch_add(1, std::memory_order_release);
    asked_.notify_one();
  }
  void wait() const {
    const uint32_t asked = asked_.load(std::memory_order_relaxed);
    for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != asked;) {
      wait_while(done_, done);
    }
  }

 private:
  void work(int self) {
    for (uint32_t seen = 0;; ++seen) {
      wait_while(asked_, seen);
      if (job_ == nullptr) return;
      job_(context_, self);
      done_.store(seen + 1, std::memory_order_release);
      done_.notify_one();
    }
  }

  // Written by the caller and by the worker: each in a cache line of its own.
  alignas(64) std::atomic<uint32_t> asked_{0};
  TeamJob job_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> done_{0};
  std::thread thread_;  // last: it uses the others
};

int first_threads() {
  const char* wanted = std::getenv("OMP_NUM_THREADS");
  const int threads = wanted ? std::atoi(wanted) : 0;
  return threads > 0 ? threads : allowed_cpus();
}

class Team {
 public:
  ~Team() { end(); }

  void set_threads(int threads) { threads_ = threads; }
  int threads() const { return threads_; }
  int64_t jobs() const { return jobs_.load(std::memory_order_relaxed); }

  void start(int threads) {
    for (auto self = static_cast<int>(workers_.size()) + 1; self < threads; ++self) {
      workers_.push_back(std::make_unique<Worker>(self));
    }
  }
  void end() { workers_.clear(); }

  void run(int threads, TeamJob job, void* context) {
    if (threads <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
      for (int self = 0; self < threads; ++self) job(context, self);
      return;
    }
    jobs_.fetch_add(1, std::memory_order_relaxed);
    start(threads);
    for (int self = 1; self < threads; ++self) workers_[self - 1]->start(job, context);
    job(context, 0);
    for (int self = 1; self < threads; ++self) workers_[self - 1]->wait();
    busy_.store(false, std::memory_order_release);
  }

 private:
  int threads_ = first_threads();
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> jobs_{0};
  std::vector<std::unique_ptr<Worker>> workers_;
};

Team& team() {
  static Team the_team;
  return the_team;
}

thread_local int own_threads = 0;  // 0: as the team has them

}  // namespace

void set_team_threads(int threads) { team().set_threads(threads); }
int team_threads() { return own_threads > 0 ? own_threads : team().threads(); }

TeamOf::TeamOf(int threads) : before_(std::exchange(own_threads, threads)) {}
TeamOf::~TeamOf() { own_threads = before_; }

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return static_cast<int>(std::thread::hardware_concurrency());
  }
  return CPU_COUNT(&set);
}

void keep_to_cpus(int first, int count) {
  cpu_set_t all, own;
  CPU_ZERO(&all);
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    if (seen >= first && seen < first + count) CPU_SET(cpu, &own);
    ++seen;
  }
  if (CPU_COUNT(&own) != count) return;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    sched_setaffinity(std::atoi(task.path().filename().c_str()), sizeof own, &own);
  }
}

void start_team() { team().start(team_threads()); }
void end_team() { team().end(); }

int64_t team_jobs() { return team().jobs(); }
void run_on_team(int threads, TeamJob job, void* context) { team().run(threads, job, context); }

}  // namespace ebb
