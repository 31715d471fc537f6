// The proof that programs of ranks come to an end, against programs that do not.
#include <random>

#include "rank_program_runs.h"

namespace ebb {
namespace {

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
