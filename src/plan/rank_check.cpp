#include "plan/rank_check.h"

#include <deque>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"

namespace ebb {

namespace {

struct Message {
  int rank;
  const Op* op;
  bool matched = false;
};

class Simulation {
 public:
  explicit Simulation(const std::vector<const Program*>& programs) : sent_(programs.size()) {
    for (const Program* program : programs) ranks_.push_back({program, order_of(*program), 0, {}});
  }

  std::vector<int64_t> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        while (step(r)) moved = true;
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) check_ended(r);
    return sent_;
  }

 private:
  struct Rank {
    const Program* program;
    std::vector<int> order;  // ops, each as often as it runs
    size_t next;
    std::map<int32_t, int> open;  // messages by buffer
  };

  // Exchanges alone: nothing else waits for other ranks.
  static std::vector<int> order_of(const Program& program) {
    std::vector<int> order;
    const auto add = [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        if (std::holds_alternative<Exchange>(program.ops[i].params)) order.push_back(i);
      }
    };
    int next = 0;
    for (const Loop& loop : program.loops) {
      add(next, loop.begin);
      for (int64_t i = 0; i < loop.count; ++i) add(loop.begin, loop.end);
      next = loop.end;
    }
    add(next, static_cast<int>(program.ops.size()));
    return order;
  }

  static Buf buffer_of(const Op& op) {
    return !op.reads.empty() ? op.reads[0] : !op.writes.empty() ? op.writes[0] : op.updates[0];
  }

  // One op of a rank; false: it waits, or has ended.
  bool step(int r) {
    Rank& rank = ranks_[r];
    if (rank.next == rank.order.size()) return false;
    const Op& op = rank.program->ops[rank.order[rank.next]];
    const auto& exchange = std::get<Exchange>(op.params);
    const int32_t buffer = buffer_of(op).id;
    if (exchange.begins()) {
      begin(r, op, exchange, buffer);
    } else {
      const auto found = rank.open.find(buffer);
      require(found != rank.open.end(), "ranks: {} of rank {} waits for nothing", op.name, r);
      if (!messages_[found->second].matched) return false;
      rank.open.erase(found);
    }
    ++rank.next;
    return true;
  }

  void begin(int r, const Op& op, const Exchange& exchange, int32_t buffer) {
    const int peer = exchange.peer;
    require(peer >= 0 && peer < static_cast<int>(ranks_.size()) && peer != r,
            "ranks: {} of rank {} is for rank {} of {}", op.name, r, peer, ranks_.size());
    require(ranks_[r].open.count(buffer) == 0, "ranks: {} of rank {} begins what is on its way",
            op.name, r);
    const int own = static_cast<int>(messages_.size());
    messages_.push_back({r, &op});
    ranks_[r].open[buffer] = own;
    if (exchange.sends()) sent_[r] += exchange.bytes();
    const std::tuple stream{exchange.sends() ? r : peer, exchange.sends() ? peer : r,
                            exchange.channel};
    auto& mine = waiting_[{stream, exchange.sends()}];
    auto& theirs = waiting_[{stream, !exchange.sends()}];
    if (theirs.empty()) {
      mine.push_back(own);
      return;
    }
    match(own, theirs.front());
    theirs.pop_front();
  }

  void match(int a, int b) {
    Message &one = messages_[a], &other = messages_[b];
    const auto& x = std::get<Exchange>(one.op->params);
    const auto& y = std::get<Exchange>(other.op->params);
    require(x.n == y.n && x.type == y.type,
            "ranks: {} of rank {} has {} numbers, {} of rank {} has {}", one.op->name, one.rank,
            x.n, other.op->name, other.rank, y.n);
    one.matched = other.matched = true;
  }

  void check_ended(size_t r) const {
    const Rank& rank = ranks_[r];
    if (rank.next < rank.order.size()) {
      std::string waiting;
      for (size_t i = 0; i < ranks_.size(); ++i) {
        if (ranks_[i].next == ranks_[i].order.size()) continue;
        waiting += (waiting.empty() ? "rank " : ", rank ") + std::to_string(i) + " at " +
                   ranks_[i].program->ops[ranks_[i].order[ranks_[i].next]].name;
      }
      throw Bug("ranks: they wait for each other: " + waiting);
    }
    for (const auto& [buffer, message] : rank.open) {
      throw Bug("ranks: " + messages_[message].op->name + " of rank " + std::to_string(r) +
                " is begun and not waited for");
    }
  }

  std::vector<Rank> ranks_;
  std::vector<Message> messages_;
  std::map<std::pair<std::tuple<int, int, int>, bool>, std::deque<int>> waiting_;
  std::vector<int64_t> sent_;
};

}  // namespace

std::vector<int64_t> check_ranks(const std::vector<const Program*>& programs) {
  return Simulation(programs).run();
}

}  // namespace ebb
