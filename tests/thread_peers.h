// Ranks that are threads of one process, under the contract of comm/peers.h, so that programs for
// several ranks are tested without MPI. Nothing is buffered: a send ends when it is received. Ranks
// that all wait for each other are an error at once.
#pragma once

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "comm/peers.h"

namespace ebb {

class ThreadRanks {
 public:
  explicit ThreadRanks(int n) : board_(std::make_shared<Board>(n)) {
    for (int r = 0; r < n; ++r) ranks_.push_back(std::make_unique<Rank>(board_, r));
  }
  Peers& operator[](int rank) { return *ranks_.at(rank); }

  // As if the rank's process had ended.
  void lose(int rank) { board_->fail_all(fmt::format("ranks: rank {} was lost", rank)); }

  // Runs it on n ranks, each a thread. What the first rank that failed threw is thrown again, with
  // that of all of them in `all`, if given: "" for those that did not fail.
  static void run(int n, const std::function<void(Peers&)>& each,
                  std::vector<std::string>* all = nullptr) {
    ThreadRanks ranks(n);
    std::vector<std::thread> threads;
    std::vector<std::string> said(n);
    std::exception_ptr first;
    for (int r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        try {
          each(ranks[r]);
          ranks.board_->go(r);
        } catch (const std::exception& error) {
          const std::lock_guard<std::mutex> lock(ranks.board_->mutex);
          said[r] = error.what();
          if (!first) first = std::current_exception();
          ranks.board_->fail_all_locked(fmt::format("ranks: rank {} gave up: {}", r, error.what()));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (all != nullptr) *all = said;
    if (first) std::rethrow_exception(first);
  }

 private:
  using Ticket = Peers::Ticket;
  struct Side {
    int rank;
    Ticket ticket;
    PeerMessage message;
  };
  // Sends that nobody has received yet, or receives that nobody has sent.
  using Stream = std::tuple<int, int, int>;  // from, to, channel

  struct Board {
    explicit Board(int n) : open(n), waits_for(n), gone(n) {}
    std::mutex mutex;
    std::condition_variable changed;
    std::map<Stream, std::deque<Side>> streams;
    std::vector<std::map<Ticket, PeerMessage>> open;  // by rank: begun and not complete
    std::vector<Ticket> waits_for;                    // 0: nothing
    std::vector<bool> gone;
    std::string failure;

    void begin(const Side& side) {
      const PeerMessage& message = side.message;
      auto& waiting = streams[message.sends ? Stream{side.rank, message.peer, message.channel}
                                            : Stream{message.peer, side.rank, message.channel}];
      open[side.rank].emplace(side.ticket, message);
      if (!failure.empty()) return;  // the other side's bytes may be gone
      if (waiting.empty() || waiting.front().message.sends == message.sends) {
        waiting.push_back(side);
        return;
      }
      const Side other = waiting.front();
      waiting.pop_front();
      const Side& to = message.sends ? other : side;
      const Side& from = message.sends ? side : other;
      if (to.message.n != from.message.n) {
        fail_all_locked(fmt::format("ranks: rank {} wanted {}, but rank {} sends {} bytes", to.rank,
                                    described(to.message), from.rank, from.message.n));
        return;
      }
      if (to.message.n > 0) std::memcpy(to.message.bytes, from.message.bytes, to.message.n);
      open[to.rank].erase(to.ticket);
      open[from.rank].erase(from.ticket);
      changed.notify_all();
    }

    void fail_all_locked(const std::string& what) {
      if (failure.empty()) failure = what;
      changed.notify_all();
    }
    void fail_all(const std::string& what) {
      const std::lock_guard<std::mutex> lock(mutex);
      fail_all_locked(what);
    }
    void go(int rank) {
      const std::lock_guard<std::mutex> lock(mutex);
      gone[rank] = true;
      if (!open[rank].empty()) {  // whose bytes the rank is about to let go
        fail_all_locked(fmt::format("ranks: rank {} had begun {}, and ended", rank,
                                    described(open[rank].begin()->second)));
        fail(Exit::peer, failure);
      }
      judge_standstill();
    }
    // Messages match when their second side begins, so if all wait, they wait for ever.
    void judge_standstill() {
      std::string who;
      for (size_t r = 0; r < gone.size(); ++r) {
        if (gone[r]) continue;
        const auto at = open[r].find(waits_for[r]);
        if (at == open[r].end()) return;
        who += fmt::format("; rank {} {}", r, described(at->second));
      }
      if (!who.empty()) fail_all_locked("ranks: all wait for each other" + who);
    }
  };

  class Rank final : public Peers {
   public:
    Rank(std::shared_ptr<Board> board, int rank) : board_(std::move(board)) {
      set_place(rank, static_cast<int>(board_->gone.size()));
    }
    void wait(Ticket ticket) override {
      std::unique_lock<std::mutex> lock(board_->mutex);
      Board& b = *board_;
      require(ticket > 0 && ticket <= last_, "ranks: no transfer {}", ticket);
      const auto over = [&] { return !b.failure.empty() || b.open[rank()].count(ticket) == 0; };
      b.waits_for[rank()] = ticket;
      if (!over()) b.judge_standstill();
      b.changed.wait(lock, over);
      b.waits_for[rank()] = 0;
      if (!b.failure.empty()) fail(Exit::peer, b.failure);
    }
    void meet(Ticket ticket) override { wait(ticket); }  // what both have begun is over
    void leave() override {
      any(0);
      board_->go(rank());
    }
    void abandon(const std::string& why) override {
      board_->fail_all(fmt::format("ranks: rank {} gave up: {}", rank(), why));
    }

   private:
    Ticket begin(const PeerMessage& message) override {
      const std::lock_guard<std::mutex> lock(board_->mutex);
      board_->begin({rank(), ++last_, message});
      return last_;
    }
    std::shared_ptr<Board> board_;
    Ticket last_ = 0;
  };

  std::shared_ptr<Board> board_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace ebb
