#include "comm/mpi_worker.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/traffic.h"

namespace ebb {

namespace {

using namespace std::chrono_literals;
using Clock = MpiWorker::Clock;

// Nobody but the thread looks for messages, so it looks again and again; computing needs its CPU
// meanwhile. It looks without a pause for as long as a short message takes, and then sleeps for a
// part of the time that it has waited: a message is found at most an eighth later than it came.
constexpr auto kAwake = 30us;
constexpr auto kShortest = 10us, kLongest = 1000us;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

Clock::duration pause_after(Clock::duration waited) {
  if (waited < kAwake) return Clock::duration::zero();
  return std::clamp<Clock::duration>(waited / 8, kShortest, kLongest);
}

}  // namespace

// What the two threads share. It outlives a worker whose thread hangs in MPI.
struct MpiWorker::Shared {
  Shared(const EbbMpi& calls, bool one_host) : mpi(calls), traffic(calls, one_host) {}

  const EbbMpi& mpi;
  std::mutex mutex;
  std::condition_variable asked, done;
  std::deque<std::pair<Peers::Ticket, PeerMessage>> queue;
  struct Open {
    PeerMessage message;
    bool met = false;
  };
  std::map<Peers::Ticket, Open> open;  // begun and not complete
  Peers::Ticket last = 0;
  uint64_t progress = 0;
  std::optional<PeerMessage> waiting;  // for this,
  bool meeting = false;                // until the other side has begun it
  std::optional<Clock::time_point> deadline;
  std::optional<Error> failure, trouble;
  enum class Order { work, finish, stop } order = Order::work;
  int rank = -1, size = 0;
  bool parked = false;             // the thread calls MPI no more
  std::atomic<bool> ended{false};  // by MPI, within a call

  void start(std::unique_lock<std::mutex>& lock);
  void work(std::unique_lock<std::mutex>& lock);
  void take_orders(std::unique_lock<std::mutex>& lock);
  void look(std::unique_lock<std::mutex>& lock);
  void finish(std::unique_lock<std::mutex>& lock);

  // Of the thread alone. After a loss MPI still knows places in it, so it does not end with the
  // thread.
  Traffic traffic;
  Clock::time_point last_move = Clock::now();
  std::vector<Peers::Ticket> met, complete;
};

void MpiWorker::Shared::start(std::unique_lock<std::mutex>& lock) {
  int own_rank = 0, own_size = 0;
  lock.unlock();
  const bool started = mpi.start(mpi.self, &own_rank, &own_size) == 0;
  lock.lock();
  if (!started) {
    failure = Error(Exit::peer,
                    fmt::format("ranks: {} does not start: {}", mpi.library, mpi.failure(mpi.self)),
                    "try the launcher with a small program of its own, such as hostname");
  }
  rank = own_rank;
  size = own_size;
  done.notify_all();
}

void MpiWorker::Shared::work(std::unique_lock<std::mutex>& lock) {
  while (order == Order::work && !failure && !trouble) {
    take_orders(lock);
    if (traffic.idle() || failure) continue;
    look(lock);
  }
}

// Sleeps until there is something to do.
void MpiWorker::Shared::take_orders(std::unique_lock<std::mutex>& lock) {
  const auto called = [&] { return !queue.empty() || order != Order::work || failure; };
  if (traffic.idle()) {
    asked.wait(lock, called);
  } else if (const auto pause = pause_after(Clock::now() - last_move); pause.count() > 0) {
    asked.wait_for(lock, pause, called);
  }
  if (!queue.empty()) last_move = Clock::now();
  for (; !queue.empty(); queue.pop_front()) {
    traffic.begin(queue.front().first, queue.front().second);
  }
}

void MpiWorker::Shared::look(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::optional<Error> found;
  bool moved = false;
  met.clear();
  complete.clear();
  try {
    moved = traffic.work(met, complete);
  } catch (const Error& error) {
    found = error;
  }
  if (!moved) std::this_thread::yield();
  lock.lock();
  if (moved) {
    last_move = Clock::now();
    ++progress;
  }
  for (const Peers::Ticket ticket : met) open.at(ticket).met = true;
  for (const Peers::Ticket ticket : complete) open.erase(ticket);
  // At the start nobody else could say more.
  if (found && deadline && !failure) failure = found;
  trouble = found;
  if (!complete.empty() || (meeting && !met.empty()) || found) done.notify_all();
}

void MpiWorker::Shared::finish(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const bool finished = mpi.finish(mpi.self) == 0;
  lock.lock();
  if (finished || failure) return;
  failure = Error(Exit::peer,
                  fmt::format("ranks: {} does not end: {}", mpi.library, mpi.failure(mpi.self)));
}

thread_local MpiWorker::Shared* MpiWorker::own = nullptr;

void MpiWorker::outlive_mpi() {
  if (own == nullptr) return;
  own->ended = true;
  while (true) pause();
}

void MpiWorker::run(const std::shared_ptr<Shared>& shared) {
  own = shared.get();
  // Sleeps of a few microseconds are meant: the system would round them up to 50 more.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->start(lock);
  shared->work(lock);
  if (shared->order == Shared::Order::finish && !shared->failure && !shared->trouble)
    shared->finish(lock);
  shared->parked = true;
  shared->done.notify_all();
}

MpiWorker::MpiWorker(const EbbMpi& mpi, bool one_host, Clock::duration most)
    : shared_(std::make_shared<Shared>(mpi, one_host)) {
  thread_ = std::thread([shared = shared_] { run(shared); });
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (!shared_->done.wait_for(lock, most, [&] { return shared_->rank >= 0; })) {
    shared_->order = Shared::Order::stop;
    thread_.detach();
    fail(Exit::peer,
         fmt::format("ranks: {} has not started within {:.1f} s", mpi.library, seconds(most)),
         "has a rank ended before it began? --peer-timeout gives them longer");
  }
  rank_ = shared_->rank;
  size_ = shared_->size;
  if (!shared_->failure) return;
  const Error failure = *shared_->failure;
  lock.unlock();
  thread_.join();
  throw failure;
}

MpiWorker::~MpiWorker() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (shared_->order == Shared::Order::work) shared_->order = Shared::Order::stop;
  shared_->asked.notify_all();
  const bool parked = shared_->done.wait_for(lock, 1s, [&] { return shared_->parked; });
  lock.unlock();
  parked ? thread_.join() : thread_.detach();
}

Peers::Ticket MpiWorker::begin(const PeerMessage& message) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  const Peers::Ticket ticket = ++shared_->last;
  shared_->open.emplace(ticket, Shared::Open{message});
  shared_->queue.emplace_back(ticket, message);
  shared_->asked.notify_one();
  return ticket;
}

void MpiWorker::wait(Peers::Ticket ticket, Until until) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  Shared& s = *shared_;
  require(ticket > 0 && ticket <= s.last, "ranks: no transfer {}", ticket);
  const auto over = [&] {
    if (s.failure) return true;
    const auto at = s.open.find(ticket);
    return at == s.open.end() || (until == Until::met && at->second.met);
  };
  const auto at = s.open.find(ticket);
  std::optional<PeerMessage> message;
  if (at != s.open.end()) message = at->second.message;
  if (!over()) {
    s.waiting = message;
    s.meeting = until == Until::met;
    if (!s.deadline) {
      s.done.wait(lock, over);
    } else if (!s.done.wait_until(lock, *s.deadline, over)) {
      s.failure = Error(Exit::peer, "ranks: not every rank has come to the start in time",
                        "--peer-timeout gives them longer; is one still reading its data?");
      s.asked.notify_one();
    }
    s.waiting.reset();
    s.meeting = false;
  }
  if (!s.failure) return;
  s.done.wait_for(lock, 1s, [&] { return s.parked || s.ended; });
  const std::string meanwhile =
      message ? fmt::format("; rank {} was waiting {}", rank_, described(*message)) : "";
  throw Error(s.failure->code(), s.failure->what() + meanwhile, s.failure->hint());
}

void MpiWorker::set_deadline(std::optional<Clock::time_point> deadline) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->deadline = deadline;
}

void MpiWorker::fail_with(const Error& error) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  if (!shared_->failure) shared_->failure = error;
  shared_->asked.notify_all();
  shared_->done.notify_all();
}

void MpiWorker::finish(Clock::duration most) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  Shared& s = *shared_;
  require(s.open.empty(), "ranks: {} transfers are open at the end", s.open.size());
  s.order = Shared::Order::finish;
  s.asked.notify_all();
  const auto over = [&] { return (s.parked && !s.trouble) || s.failure; };
  if (!s.done.wait_for(lock, most, over)) {
    s.failure =
        Error(Exit::peer,
              fmt::format("ranks: {} has not ended within {:.1f} s", s.mpi.library, seconds(most)),
              "all ranks had done their work, and what they saved is whole");
  }
  if (s.failure) throw Error(*s.failure);
}

void MpiWorker::check() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->failure) throw Error(*shared_->failure);
}

Liveness::State MpiWorker::state() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  std::string trouble = shared_->trouble ? shared_->trouble->what() : "";
  if (shared_->ended) trouble = fmt::format("{} wanted to end it", shared_->mpi.library);
  return {shared_->waiting ? described(*shared_->waiting) : "", shared_->progress, trouble};
}

}  // namespace ebb
