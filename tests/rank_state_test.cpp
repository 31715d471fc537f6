// The state of a run over ranks: where it begins, how it becomes one file, and who goes on with it.
#include <map>

#include "file_limit.h"
#include "rank_fixture.h"

namespace ebb {
namespace {

class RankState : public RankRuns {
 protected:
  // What a rank has, as files have it.
  static std::map<std::string, std::string> filed(const State& state) {
    std::map<std::string, std::string> all;
    for (const StateTensor& tensor : state.tensors()) {
      if (!tensor.complete()) continue;
      std::string& bytes = all[tensor.name];
      bytes.resize(static_cast<size_t>(tensor.file_bytes()));
      state.read_as_filed(tensor, 0, bytes.data(), tensor.file_bytes());
    }
    return all;
  }

  // What each of `ranks` says when all of them fail, each with this code.
  std::vector<std::string> failures(const StateKind& kind, int ranks, Exit code,
                                    const Each& each) const {
    std::vector<std::string> all;
    const auto checked = [&](TrainingRun& run, Peers& peers) {
      try {
        each(run, peers);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), code) << e.what();
        throw;
      }
    };
    EXPECT_ANY_THROW(on_ranks(kind, ranks, Shard::grads, checked, &all));
    for (const std::string& said : all) EXPECT_FALSE(said.empty());
    return all;
  }
};

TEST_F(RankState, ATensorBeginsWithTheSameBitsOnWhicheverRankItIs) {
  for (const StateKind& kind : state_kinds()) {
    SCOPED_TRACE(kind.name);
    std::map<std::string, std::string> alone;
    on_ranks(kind, 1, Shard::off, [&](TrainingRun& run, Peers&) {
      run.initialise();
      alone = filed(run.state());
    });
    std::mutex mutex;
    std::set<std::string> seen;
    on_ranks(kind, 3, Shard::grads, [&](TrainingRun& run, Peers&) {
      run.initialise();
      const std::lock_guard lock(mutex);
      for (const auto& [name, bytes] : filed(run.state())) {
        EXPECT_TRUE(bytes == alone.at(name)) << name;
        seen.insert(name);
      }
    });
    EXPECT_EQ(seen.size(), alone.size());
  }
}

// Files have always had their tensors in the order in which a step declares them.
TEST_F(RankState, IsListedInTheOrderOfAStepsBuffers) {
  for (const StateKind& kind : state_kinds()) {
    for (const bool offload : {false, true}) {
      TrainOptions o = options(kind, {});
      if (offload) {
        o.step.choices.release = true;
        o.step.choices.offload = to_disk(true, true, false);
      }
      const Machine machine = with_disk(machine_);
      const PlannedRun plan = planned(o);
      const Session session(o.config, plan, machine);
      const std::vector<StateTensor> listed = state_tensors(o.config, plan.step);
      const std::vector<StateTensor>& found = session.state().tensors();
      ASSERT_EQ(found.size(), listed.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].name, listed[i].name);
        EXPECT_EQ(found[i].file_bytes(), listed[i].file_bytes());
        if (i > 0) {
          EXPECT_LT(found[i - 1].values.id, found[i].values.id);
        }
      }
    }
  }
}

TEST_F(RankState, AnyNumberOfRanksWritesTheFileOfOne) {
  const std::vector<StateKind> kinds = state_kinds();
  for (const StateKind& kind : kinds) {
    train(kind, 1, Shard::off, "", 3, at("alone"));
    const std::string alone = bytes_of(at("alone"));
    ASSERT_GT(alone.size(), 1000u);
    for (const int ranks : &kind == &kinds.front() ? std::vector{2, 3, 4} : std::vector{3}) {
      for (const Shard shard : {Shard::off, Shard::grads}) {
        SCOPED_TRACE(
            fmt::format("{}: {} ranks, shard {}", kind.name, ranks, shard == Shard::grads));
        train(kind, ranks, shard, "", 3, at("together"));
        EXPECT_TRUE(bytes_of(at("together")) == alone);
      }
    }
  }
}

TEST_F(RankState, AnotherNumberOfRanksGoesOnAsIfNothingHadHappened) {
  for (const StateKind& kind : state_kinds()) {
    if (kind.storage.ema == DType::bf16) continue;  // rounded at random, by what came before
    SCOPED_TRACE(kind.name);
    train(kind, 1, Shard::off, "", 6, at("alone"));
    train(kind, 4, Shard::grads, "", 2, at("first"));
    train(kind, 2, Shard::off, at("first"), 2, at("second"));
    train(kind, 3, Shard::grads, at("second"), 2, at("third"));
    EXPECT_TRUE(bytes_of(at("third")) == bytes_of(at("alone")));
  }
}

// ---- what goes wrong ------------------------------------------------------------------------

// At the first byte, amid the tensors of others, and when nothing but the header is left to do.
TEST_F(RankState, AFullDiskIsTheSameErrorOnEveryRankAndLeavesNothing) {
  const StateKind kind = state_kinds()[0];
  train(kind, 1, Shard::off, "", 0, at("whole"));
  const auto whole = static_cast<int64_t>(bytes_of(at("whole")).size());
  std::filesystem::remove(at("whole"));
  for (const int64_t limit : {int64_t{0}, whole / 2, whole - 1}) {
    const auto said = failures(kind, 3, Exit::disk, [&](TrainingRun& run, Peers& peers) {
      run.initialise();
      std::optional<FileLimit> full;
      if (peers.rank() == 0) full.emplace(static_cast<rlim_t>(limit));
      try {
        run.save(at("checkpoint"));
      } catch (const Error& e) {
        EXPECT_NE(e.hint().find("ulimit"), std::string::npos) << e.hint();
        throw;
      }
    });
    EXPECT_NE(said[0].find("checkpoint: write: File too large"), std::string::npos) << said[0];
    EXPECT_EQ(said[1], said[0]);
    EXPECT_EQ(said[2], said[0]);
    EXPECT_EQ(files(), 0);
  }
}

// Saving again works: nobody is left waiting for anything.
TEST_F(RankState, AFailedSaveIsOverOnEveryRank) {
  const StateKind kind = state_kinds()[0];
  train(kind, 1, Shard::off, "", 1, at("alone"));
  std::ofstream(at("file")) << "in the way";
  on_ranks(kind, 3, Shard::grads, [&](TrainingRun& run, Peers&) {
    run.initialise();
    EXPECT_THROW(run.save(at("file") / "checkpoint"), Error);
    run.step();
    run.save(at("together"));
  });
  EXPECT_TRUE(bytes_of(at("together")) == bytes_of(at("alone")));
}

TEST_F(RankState, ARankThatIsLostWhileSavingLeavesNoFile) {
  const StateKind kind = state_kinds()[0];
  for (const int lost : {0, 2}) {
    failures(kind, 3, Exit::peer, [&](TrainingRun& run, Peers& peers) {
      run.initialise();
      const StepSpec& step = run.planned().step;
      const OwnerOf owner_of = owners_of(kind.config, step);
      int asked = 0;
      StateRanks ranks{peers, step, [&](const std::string& tensor) {
                         // Some of its own tensors are on their way by then.
                         const bool dies = peers.rank() == lost && owner_of(tensor) == 2;
                         if (dies && ++asked == 3) throw std::runtime_error("killed");
                         return owner_of(tensor);
                       }};
      CheckpointInfo info;
      info.config = kind.config;
      save_checkpoint(at("checkpoint"), info, run.state(), &ranks);
    });
    EXPECT_EQ(files(), 0);
  }
}

// One byte of any tensor, whoever has it: every rank refuses the file, by that tensor's name.
TEST_F(RankState, DamageToAnyTensorIsFoundByTheRankThatHasIt) {
  const StateKind kind = state_kinds()[0];
  train(kind, 1, Shard::off, "", 1, at("good"));
  const std::string good = bytes_of(at("good"));
  const auto all = state_tensors(kind.config, options(kind, {}).step);
  size_t end = good.size();
  for (size_t i = all.size(); i-- > 0;) {
    const size_t begin = end - static_cast<size_t>(all[i].file_bytes());
    if (i % 7 == 0 || i + 1 == all.size()) {
      std::string bad = good;
      bad[begin] ^= 1;
      std::ofstream(at("bad"), std::ios::binary) << bad;
      const auto said =
          failures(kind, 3, Exit::disk, [&](TrainingRun& run, Peers&) { start(run, at("bad")); });
      for (const std::string& text : said) {
        EXPECT_NE(text.find("'" + all[i].name + "'"), std::string::npos) << text;
      }
    }
    end = begin;
  }
}

// A file can have more than the run keeps: rank 0 looks at that.
TEST_F(RankState, DamageToWhatNoRankKeepsIsFoundToo) {
  const StateKind kind = state_kinds()[0];
  train(kind, 1, Shard::off, "", 1, at("file"));
  std::string bytes = bytes_of(at("file"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // of the last tensor's average
  const auto load = [&](Peers& peers) {
    TrainOptions o = options(kind, {2, 1, peers.rank()}, Shard::grads);
    o.step.ema = false;
    const PlannedRun plan = planned(o);
    TrainingRun run(o, *source_, plan, machine_, &peers);
    start(run, at("file"));
  };
  ThreadRanks::run(2, load);
  std::ofstream(at("file"), std::ios::binary) << bytes;
  std::vector<std::string> said;
  EXPECT_THROW(ThreadRanks::run(2, load, &said), Error);
  for (const std::string& text : said) EXPECT_NE(text.find("'ema."), std::string::npos) << text;
}

// What it has not got, a rank does not read.
TEST_F(RankState, ARankReadsOnlyItsOwnTensors) {
  const StateKind kind = state_kinds()[0];
  train(kind, 1, Shard::off, "", 1, at("good"));
  std::string bytes = bytes_of(at("good"));
  bytes[bytes.size() - 1] ^= 1;  // of the last tensor's average, which is the last rank's
  std::ofstream(at("bad"), std::ios::binary) << bytes;
  on_ranks(kind, 3, Shard::grads, [&](TrainingRun& run, Peers& peers) {
    const StepSpec& step = run.planned().step;
    const StateRanks ranks{peers, step, owners_of(kind.config, step)};
    const SafetensorsReader file(at("bad"));
    const auto verify = [&] { verify_hashes_of(file, run.state(), kind.config, ranks); };
    if (peers.rank() == 2) {
      EXPECT_THROW(verify(), Error);
    } else {
      verify();
      load_state(file, run.state(), kind.config);
    }
  });
}

TEST_F(RankState, AFileWithoutATensorIsRefusedByAllRanks) {
  const StateKind kind = state_kinds()[0];
  StateKind other = kind;
  other.optimizer = Optimizer::lion;  // has no second moment
  train(other, 1, Shard::off, "", 1, at("lion"));
  const auto said =
      failures(kind, 2, Exit::disk, [&](TrainingRun& run, Peers&) { start(run, at("lion")); });
  EXPECT_NE(said[0].find("no tensor v."), std::string::npos) << said[0];
  EXPECT_EQ(said[0], said[1]);
}

}  // namespace
}  // namespace ebb
