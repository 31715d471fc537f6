// What comm/mpi_calls.h wants of an MPI library, for ranks that are threads: messages match as MPI
// has them match, and move when somebody polls. It can be told to fail and to hang.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/mpi_calls.h"

namespace ebb {

class FakeMpi {
 public:
  explicit FakeMpi(int n) {
    for (int r = 0; r < n; ++r) ranks_.push_back(std::make_unique<Rank>(*this, r));
  }
  const EbbMpi& operator[](int rank) const { return ranks_.at(rank)->calls; }

  // Calls of this rank fail from now on.
  void fail(int rank) { ranks_.at(rank)->broken = true; }
  // As long as it is set, calls of this rank do not return.
  void hang(int rank, bool on) { ranks_.at(rank)->hangs = on; }
  // The same of its last call alone.
  void hang_at_end(int rank, bool on) { ranks_.at(rank)->hangs_at_end = on; }
  // The largest message that was asked for.
  int64_t largest() const { return largest_; }
  // Sends that were in flight at the same time, at most, between two ranks on one tag.
  size_t most_at_once() const { return most_at_once_; }

 private:
  struct Side {
    int rank, slot;
    std::byte* bytes;
    int n;
  };
  struct Queue {
    std::deque<Side> sends, receives;
  };
  struct Rank {
    Rank(FakeMpi& fake, int number) : all(fake), rank(number) {
      calls = {EBB_MPI_CALLS, "a fake MPI", this,   start,  send_one,
               receive_one,   poll_all,     finish, failure};
    }
    FakeMpi& all;
    const int rank;
    EbbMpi calls{};
    std::atomic<bool> broken{false}, hangs{false}, hangs_at_end{false};
    std::vector<EbbMpiDone> done;
    std::vector<int> free_slots;
    int slots = 0;

    int slot() {
      if (free_slots.empty()) return slots++;
      const int last = free_slots.back();
      free_slots.pop_back();
      return last;
    }
    bool fails() const {
      while (hangs) std::this_thread::yield();
      return broken;
    }
  };

  static Rank& rank_of(void* self) { return *static_cast<Rank*>(self); }
  static int start(void* self, int* rank, int* size) {
    *rank = rank_of(self).rank;
    *size = static_cast<int>(rank_of(self).all.ranks_.size());
    return rank_of(self).fails() ? -1 : 0;
  }
  static int begin(Rank& own, int from, int to, int tag, std::byte* bytes, int n) {
    if (own.fails()) return -1;
    const std::lock_guard<std::mutex> lock(own.all.mutex_);
    own.all.largest_ = std::max<int64_t>(own.all.largest_, n);
    Queue& queue = own.all.queues_[{from, to, tag}];
    const Side side{own.rank, own.slot(), bytes, n};
    (own.rank == from ? queue.sends : queue.receives).push_back(side);
    own.all.most_at_once_ = std::max(own.all.most_at_once_, queue.sends.size());
    return side.slot;
  }
  static int send_one(void* self, int to, int tag, const void* bytes, int n) {
    auto* from = static_cast<std::byte*>(const_cast<void*>(bytes));
    return begin(rank_of(self), rank_of(self).rank, to, tag, from, n);
  }
  static int receive_one(void* self, int from, int tag, void* bytes, int n) {
    return begin(rank_of(self), from, rank_of(self).rank, tag, static_cast<std::byte*>(bytes), n);
  }
  static int poll_all(void* self, EbbMpiDone* done, int most) {
    Rank& own = rank_of(self);
    if (own.fails()) return -1;
    const std::lock_guard<std::mutex> lock(own.all.mutex_);
    for (auto& [place, queue] : own.all.queues_) own.all.match(queue);
    const int count = std::min<int>(most, static_cast<int>(own.done.size()));
    std::copy_n(own.done.begin(), count, done);
    for (int i = 0; i < count; ++i) own.free_slots.push_back(own.done[i].slot);
    own.done.erase(own.done.begin(), own.done.begin() + count);
    return count;
  }
  static int finish(void* self) {
    while (rank_of(self).hangs_at_end) std::this_thread::yield();
    return rank_of(self).fails() ? -1 : 0;
  }
  static const char* failure(void*) { return "the fake was told to fail"; }

  void match(Queue& queue) {
    while (!queue.sends.empty() && !queue.receives.empty()) {
      const Side from = queue.sends.front(), to = queue.receives.front();
      queue.sends.pop_front();
      queue.receives.pop_front();
      if (std::min(from.n, to.n) > 0) std::memcpy(to.bytes, from.bytes, std::min(from.n, to.n));
      const int failure = from.n > to.n ? kEbbMpiTooLong : kEbbMpiFine;
      ranks_[from.rank]->done.push_back({from.slot, kEbbMpiFine, from.n});
      ranks_[to.rank]->done.push_back({to.slot, failure, std::min(from.n, to.n)});
    }
  }

  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, Queue> queues_;  // from, to, tag
  std::vector<std::unique_ptr<Rank>> ranks_;
  int64_t largest_ = 0;
  size_t most_at_once_ = 0;
};

}  // namespace ebb
