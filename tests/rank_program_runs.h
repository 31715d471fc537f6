// Programs of several ranks, run as threads of one process: what they leave behind.
#pragma once

#include <algorithm>
#include <mutex>
#include <set>

#include "plan/rank_check.h"
#include "step_runs.h"
#include "thread_peers.h"

namespace ebb {

// One thread computes for all ranks in turn; only waiting is side by side.
class OneAtATime final : public PeerLane {
 public:
  OneAtATime(Peers& peers, std::mutex& turn) : peers_(peers), turn_(turn) {}
  Ticket send(int to, int channel, const void* bytes, int64_t n) override {
    return peers_.send(to, channel, bytes, n);
  }
  Ticket receive(int from, int channel, void* bytes, int64_t n) override {
    return peers_.receive(from, channel, bytes, n);
  }
  void wait(Ticket ticket) override { let_others(ticket, &PeerLane::wait); }
  void meet(Ticket ticket) override { let_others(ticket, &PeerLane::meet); }

 private:
  void let_others(Ticket ticket, void (PeerLane::*part)(Ticket)) {
    turn_.unlock();
    try {
      (peers_.*part)(ticket);
    } catch (...) {
      turn_.lock();
      throw;
    }
    turn_.lock();
  }

  Peers& peers_;
  std::mutex& turn_;
};

inline StepSpec placed(StepSpec spec, RankPlace place, int rank, Shard shard) {
  place.rank = rank;
  spec.place = place;
  spec.choices.shard = shard;
  return spec;
}

inline RankPlace groups(int ranks) { return {ranks}; }

inline constexpr StageOrder kStageOrders[] = {StageOrder::in_turn, StageOrder::late,
                                              StageOrder::late_ahead};

// Blocks cut into stages as equal as they can be.
inline RankPlace pipeline(const DitConfig& config, int stages, int groups = 1) {
  RankPlace place{groups, stages};
  for (int i = 1; i < stages; ++i) place.cuts.push_back(config.depth() * i / stages);
  return place;
}

// What ranks leave behind after two steps: of each tensor what its owner has, or all the same.
class Ranks {
 public:
  // Before step k of a rank; and of how many.
  using Before = std::function<void(Rig& machine, int rank, int64_t k)>;
  Ranks(const DitConfig& config, StepSpec spec, const Choices& choices, const RankPlace& place,
        Shard shard, const Before& before = {}, int64_t steps = 2,
        Executor::Mode mode = Executor::Mode::normal) {
    spec.choices = choices;
    const int ranks = place.ranks();
    std::vector<Program> programs;
    for (int r = 0; r < ranks; ++r) {
      programs.push_back(write_step(config, placed(spec, place, r, shard), cpu_device()));
    }
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    const std::vector<int64_t> planned = check_ranks(all);
    std::mutex turn;
    found_.resize(ranks);
    resident_.resize(ranks);
    sent_.resize(ranks);
    ThreadRanks::run(ranks, [&](Peers& peers) {
      const int r = peers.rank();
      turn.lock();
      try {
        OneAtATime lane(peers, turn);
        Rig machine({std::move(programs[r])}, mode);
        machine.set_weights(config);
        machine.executor().exchange_with(lane);
        for (int64_t k = 0; k < steps; ++k) {
          machine.set_batch(config, spec.batch);
          if (before) before(machine, r, k);
          machine.executor().run(training_scalars(k));
          EXPECT_EQ(machine.executor().peak_bytes(), machine.plan().bytes);
        }
        sent_[r] = planned[r];
        found_[r] = results(machine);
        resident_[r] = machine.plan().resident_bytes;
        EXPECT_EQ(peers.sent_bytes(), steps * planned[r]) << "of rank " << r;
      } catch (...) {
        turn.unlock();
        throw;
      }
      turn.unlock();
    });
  }

  // Every buffer of every rank has the bits that one rank alone leaves, and every one is somewhere.
  void expect_same_as(const Bits& alone) const {
    std::set<std::string> missing;
    for (const auto& [name, bits] : alone) missing.insert(name);
    for (size_t r = 0; r < found_.size(); ++r) {
      for (const auto& [name, bits] : found_[r]) {
        if (alone.count(name) == 0) continue;  // a gradient that ended in another buffer
        missing.erase(name);
        EXPECT_TRUE(alone.at(name) == bits) << name << " of " << r;
      }
    }
    EXPECT_TRUE(missing.empty()) << *missing.begin();
  }
  const Bits& found(int rank) const { return found_[rank]; }
  int64_t sent_bytes(int rank) const { return sent_[rank]; }  // in a step
  int64_t most_resident() const { return *std::max_element(resident_.begin(), resident_.end()); }

 private:
  std::vector<Bits> found_;
  std::vector<int64_t> resident_, sent_;
};

}  // namespace ebb
