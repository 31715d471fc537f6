// Programs of several ranks, run as threads of one process: the bits of one rank alone, whatever
// their number, and no more bytes than the plan says.
#include <algorithm>
#include <random>

#include "plan/rank_check.h"
#include "step_runs.h"
#include "thread_peers.h"

namespace ebb {
namespace {

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

StepSpec placed(StepSpec spec, RankPlace place, int rank, Shard shard) {
  place.rank = rank;
  spec.place = place;
  spec.choices.shard = shard;
  return spec;
}

RankPlace groups(int ranks) { return {ranks}; }

// Blocks cut into stages as equal as they can be.
RankPlace pipeline(const DitConfig& config, int stages, int groups = 1) {
  RankPlace place{groups, stages};
  for (int i = 1; i < stages; ++i) place.cuts.push_back(config.depth() * i / stages);
  return place;
}

// What ranks leave behind after two steps: of each tensor what its owner has, or all the same.
class Ranks {
 public:
  Ranks(const DitConfig& config, StepSpec spec, const Choices& choices, const RankPlace& place,
        Shard shard) {
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
    ThreadRanks::run(ranks, [&](Peers& peers) {
      const int r = peers.rank();
      turn.lock();
      try {
        OneAtATime lane(peers, turn);
        Rig machine({std::move(programs[r])});
        machine.set_weights(config);
        machine.executor().exchange_with(lane);
        for (int64_t k = 0; k < 2; ++k) {
          machine.set_batch(config, spec.batch);
          machine.executor().run(training_scalars(k));
          EXPECT_EQ(machine.executor().peak_bytes(), machine.plan().bytes);
        }
        found_[r] = results(machine);
        resident_[r] = machine.plan().resident_bytes;
        EXPECT_EQ(peers.sent_bytes(), 2 * planned[r]) << "of rank " << r;
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
  int64_t most_resident() const { return *std::max_element(resident_.begin(), resident_.end()); }

 private:
  std::vector<Bits> found_;
  std::vector<int64_t> resident_;
};

TEST(RankPrograms, AnyNumberOfRanksHasTheBitsOfOne) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 7;  // shares differ
  for (const Objective objective : {Objective::ddpm, Objective::flow}) {
    const DitConfig config = uneven_config(objective);
    for (const float clip : {0.0f, 0.05f}) {
      const StepSpec spec = updating(clip, kBatch);
      const Bits alone = run_with(config, spec, {});
      for (const int ranks : {2, 3, 4, 7}) {
        for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
          SCOPED_TRACE(fmt::format("{} ranks, shard {}", ranks, static_cast<int>(shard)));
          Ranks(config, spec, {}, groups(ranks), shard).expect_same_as(alone);
        }
      }
    }
  }
}

TEST(RankPrograms, LayerByLayerInMicroBatchesAndRecomputedToo) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 8;
  const DitConfig config = small_config(Objective::flow);
  const StepSpec spec = updating(0.05f, kBatch);
  const Bits alone = run_with(config, spec, {});
  Choices layers{.micro_batch = 2, .layer_major = true};
  layers.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet{}));
  for (const int ranks : {2, 3}) {
    for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
      Ranks(config, spec, layers, groups(ranks), shard).expect_same_as(alone);
    }
  }
}

TEST(RankPrograms, EveryOptimizerAndModelGoesOverRanks) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    StepSpec spec = updating(0.05f, 3);
    spec.l1 = 0.1;
    Ranks(m.config, spec, {}, groups(3), Shard::grads).expect_same_as(run_with(m.config, spec, {}));
  }
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adafactor}) {
    const DitConfig config = small_config();
    StepSpec spec = updating(0.05f, 3);
    spec.optimizer = optimizer;
    Ranks(config, spec, {}, groups(3), Shard::grads).expect_same_as(run_with(config, spec, {}));
  }
}

// Stages that each have some of the blocks: weights, state and gradients of the others are not
// there at all.
TEST(RankPrograms, APipelineHasTheBitsOfOne) {
  const OneThread one_thread;
  constexpr int64_t kBatch = 5;
  const auto expect_exact = [&](Objective objective, int stages, int64_t micro_batch, bool fed,
                                const Storage& storage) {
    SCOPED_TRACE(fmt::format("{} stages, micro-batches of {}", stages, micro_batch));
    DitConfig config = uneven_config(objective);
    while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
    StepSpec spec = updating(0.05f, kBatch);
    if (fed) spec.feeding = {true, DType::u8, true, 0};
    Choices choices{.micro_batch = micro_batch, .storage = storage};
    const Bits alone = run_with(config, spec, {.storage = storage});
    for (const bool late : {false, true}) {
      choices.late_matrices = late;
      Ranks(config, spec, choices, pipeline(config, stages), Shard::off).expect_same_as(alone);
    }
  };
  expect_exact(Objective::ddpm, 2, 2, false, {});
  expect_exact(Objective::ddpm, 4, 1, false, {});
  expect_exact(Objective::flow, 3, 5, false, {});
  expect_exact(Objective::flow, 3, 1, true, {});
  Storage rounded;
  rounded.activation = DType::bf16;
  rounded.moments = Moments::coded;
  expect_exact(Objective::flow, 2, 2, true, rounded);
}

// What is added in a tree has the bits that its leaves say, whoever has them and however they are
// gone through.
TEST(RankPrograms, ATreeHasTheBitsOfItsLeaves) {
  const OneThread one_thread;
  DitConfig config = uneven_config(Objective::flow);
  config.qk_norm = QkNormKind::rms;  // gains, whose gradients are never put off
  while (config.depth() < 4) config.blocks.push_back(config.blocks.back());
  StepSpec spec = updating(0.05f, 11);
  const Bits chain = run_with(config, spec, {});
  spec.leaves = 4;
  const Bits alone = run_with(config, spec, {});
  EXPECT_NE(chain.at("blocks.1.mlp.fc1.weight"), alone.at("blocks.1.mlp.fc1.weight"));
  const Choices one{.micro_batch = 1}, two{.micro_batch = 2};
  Choices layers{.micro_batch = 1, .layer_major = true};
  layers.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet{}));
  for (const Choices& choices : {one, two, layers}) {
    Ranks(config, spec, choices, groups(1), Shard::off).expect_same_as(alone);
    for (const int ranks : {2, 4}) {
      for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
        SCOPED_TRACE(fmt::format("{} ranks, shard {}", ranks, static_cast<int>(shard)));
        Ranks(config, spec, choices, groups(ranks), shard).expect_same_as(alone);
      }
    }
  }
  Choices late = one;
  late.late_matrices = true;
  Ranks(config, spec, late, pipeline(config, 4), Shard::off).expect_same_as(alone);
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    for (Choices choices : {one, two}) {
      for (const bool is_late : {false, true}) {
        choices.late_matrices = is_late;
        SCOPED_TRACE(fmt::format("2 x 2, shard {}, late {}", static_cast<int>(shard), is_late));
        Ranks(config, spec, choices, pipeline(config, 2, 2), shard).expect_same_as(alone);
      }
    }
    Ranks(config, spec, two, pipeline(config, 3, 4), shard).expect_same_as(alone);
  }
}

// Weights stay with all, the rest of the state with its owner: 4 + 12 / n bytes a parameter. With
// the weights too: 16 / n.
TEST(RankPrograms, StateLiesWithItsOwnerAlone) {
  const DitConfig config = named_config("DiT-S/2");
  const auto resident = [&](int ranks, Shard shard) {
    int64_t most = 0;
    for (int r = 0; r < ranks; ++r) {
      const Program program =
          write_step(config, placed(updating(1, 8), groups(ranks), r, shard), cpu_device());
      int64_t bytes = 0;
      for (const Buffer& b : program.buffers) bytes += b.resident ? b.bytes() : 0;
      most = std::max(most, bytes);
    }
    return static_cast<double>(most) / static_cast<double>(parameter_count(config));
  };
  EXPECT_NEAR(resident(1, Shard::off), 16, 0.1);
  EXPECT_NEAR(resident(4, Shard::off), 16, 0.1);
  EXPECT_NEAR(resident(4, Shard::grads), 4 + 12.0 / 4, 0.2);
  EXPECT_NEAR(resident(8, Shard::grads), 4 + 12.0 / 8, 0.3);
  EXPECT_NEAR(resident(8, Shard::weights), 16.0 / 8, 0.4);
}

TEST(RankShares, AreInOrderAndAsEqualAsCanBe) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int64_t batch : {8, 9, 31}) {
      int64_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        const Share share = RankPlace{ranks, 1, r}.share(batch);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.count, batch / ranks);
        EXPECT_LE(share.count, (batch + ranks - 1) / ranks);
        next += share.count;
      }
      EXPECT_EQ(next, batch);
    }
  }
}

// ---- the validator ------------------------------------------------------------------------------

class RankCheck : public testing::Test {
 protected:
  static std::vector<Program> programs(int ranks, Shard shard) {
    std::vector<Program> made;
    for (int r = 0; r < ranks; ++r) {
      made.push_back(write_step(small_config(), placed(updating(1, 4), groups(ranks), r, shard),
                                cpu_device()));
    }
    return made;
  }
  static std::string refusal(const std::vector<Program>& programs) {
    std::vector<const Program*> all;
    for (const Program& program : programs) all.push_back(&program);
    try {
      check_ranks(all);
    } catch (const Bug& bug) {
      return bug.what();
    }
    return "";
  }
  static std::vector<size_t> exchanges(const Program& program) {
    std::vector<size_t> found;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      if (std::holds_alternative<Exchange>(program.ops[i].params)) found.push_back(i);
    }
    return found;
  }
};

TEST_F(RankCheck, TakesWhatIsRightAndNamesWhoWaits) {
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    EXPECT_EQ(refusal(programs(3, shard)), "");
    std::vector<Program> missing = programs(3, shard);
    std::vector<Op>& ops = missing[1].ops;  // without its last message
    const Buf last = ops[exchanges(missing[1]).back()].reads.at(0);
    std::erase_if(ops, [&](const Op& op) {
      const auto* exchange = std::get_if<Exchange>(&op.params);
      return exchange != nullptr && exchange->sends() && op.reads[0] == last;
    });
    EXPECT_NE(refusal(missing).find("wait"), std::string::npos) << refusal(missing);
  }
}

TEST_F(RankCheck, MutilatedProgramsAreRefused) {
  std::mt19937 random(5);
  int refused = 0;
  constexpr int kTries = 200;
  for (int i = 0; i < kTries; ++i) {
    std::vector<Program> made = programs(3, i % 2 == 0 ? Shard::off : Shard::grads);
    Program& program = made[random() % 3];
    const std::vector<size_t> at = exchanges(program);
    Op& op = program.ops[at[random() % at.size()]];
    auto& exchange = std::get<Exchange>(op.params);
    switch (random() % 3) {
      case 0:
        exchange.n += 1;
        break;
      case 1:
        exchange.peer = (exchange.peer + 1) % 4;
        break;
      default:
        exchange.channel += 1;
    }
    // Of an end only its begin says where it goes.
    refused += !refusal(made).empty() || !exchange.begins() ? 1 : 0;
  }
  EXPECT_EQ(refused, kTries);
}

// Ops of a rank in another order: whatever the validator lets pass runs to its end, and gives the
// bytes that it counted; what it refuses does not.
TEST_F(RankCheck, ShuffledProgramsAreJudgedAsTheyRun) {
  std::mt19937 random(7);
  int passed = 0, stuck = 0;
  for (int i = 0; i < 60; ++i) {
    std::vector<Program> made = programs(3, Shard::grads);
    // Exchanges alone, some of them moved to other places.
    for (Program& program : made) {
      std::erase_if(program.ops,
                    [](const Op& op) { return !std::holds_alternative<Exchange>(op.params); });
      program.loops.clear();
    }
    for (int swaps = static_cast<int>(random() % 3); swaps > 0; --swaps) {
      std::vector<Op>& ops = made[random() % 3].ops;
      const size_t from = random() % (ops.size() - 1);
      std::swap(ops[from], ops[from + 1]);
    }
    const bool right = refusal(made).empty();
    bool ran = true;
    // Of all ranks, and there until all have ended: a rank that gives up has transfers open.
    std::vector<std::vector<std::byte>> memory(3, std::vector<std::byte>(1 << 20));
    try {
      ThreadRanks::run(3, [&](Peers& peers) {
        std::map<int32_t, PeerLane::Ticket> tickets;
        std::vector<std::byte>& bytes = memory[peers.rank()];
        for (const Op& op : made[peers.rank()].ops) {
          const auto& x = std::get<Exchange>(op.params);
          const int32_t id = (!op.reads.empty()    ? op.reads[0]
                              : !op.writes.empty() ? op.writes[0]
                                                   : op.updates[0])
                                 .id;
          if (!x.begins()) {
            if (tickets.count(id) == 0) throw Error(Exit::peer, "waits for nothing", "");
            peers.wait(tickets.at(id));
          } else if (x.sends()) {
            tickets[id] = peers.send(x.peer, x.channel, bytes.data(), x.bytes());
          } else {
            tickets[id] = peers.receive(x.peer, x.channel, bytes.data(), x.bytes());
          }
        }
      });
    } catch (const std::exception&) {
      ran = false;
    }
    EXPECT_TRUE(!right || ran) << "passed, and did not run";
    (right ? passed : stuck) += 1;
  }
  EXPECT_GT(passed, 5);
  EXPECT_GT(stuck, 5);
}

}  // namespace
}  // namespace ebb
