// 1-bit Adam between ranks: what is kept, who goes on with it, and what it may be mistaken for.
#include "base/error.h"
#include "rank_fixture.h"

namespace ebb {
namespace {

class OneBitRuns : public RankRuns {
 protected:
  static constexpr const char* kMatrix = "blocks.0.attn.qkv.weight";

  static StateKind kind(const char* text) {
    StateKind kind{text, small_config()};
    kind.storage.exchange = parse_exchange(text).value();
    return kind;
  }
  static StateKind warming() {
    StateKind made = kind("onebit");
    made.storage.exchange = exchange_phases(made.storage.exchange, 9)[0].code;
    return made;
  }
  void warm(int ranks, int steps) const {
    train(warming(), ranks, Shard::off, "", steps, at("warm"));
  }

  static std::vector<double> values(const std::filesystem::path& path, const std::string& name) {
    const SafetensorsReader file(path);
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) return {};
    std::vector<double> all(entry->count());
    file.read_f64(*entry, all.data(), std::ssize(all));
    return all;
  }
  // Of a tensor all that is not sent yet.
  static std::vector<double> unsent(const std::filesystem::path& path, const std::string& name) {
    std::vector<double> sum = values(path, kSumRest + name);
    for (int group = 0;; ++group) {
      const std::vector<double> part = values(path, rest_prefix(group) + name);
      if (part.empty()) return sum;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
  }
};

TEST_F(OneBitRuns, GoOnWithTheBitsOfARunThatWasNeverStoppedHoweverTheyAreSharded) {
  warm(3, 2);
  std::string whole;
  for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
    SCOPED_TRACE(static_cast<int>(shard));
    train(kind("onebit"), 3, shard, at("warm"), 4, at("whole"));
    train(kind("onebit"), 3, shard, at("warm"), 2, at("half"));
    train(kind("onebit"), 3, shard, at("half"), 2, at("rest"));
    EXPECT_TRUE(bytes_of(at("rest")) == bytes_of(at("whole")));
    if (!whole.empty()) {
      EXPECT_TRUE(bytes_of(at("whole")) == whole);
    }
    whole = bytes_of(at("whole"));
  }
}

TEST_F(OneBitRuns, FreezeSecondMomentsAndSendOneMagnitudeOfEachMatrix) {
  warm(2, 2);
  train(kind("onebit"), 2, Shard::off, at("warm"), 3, at("after"));
  const std::string second = std::string(kSecondMoment), first = kFirstMoment;
  EXPECT_EQ(values(at("after"), second + kMatrix), values(at("warm"), second + kMatrix));
  const std::vector<double> m = values(at("after"), first + kMatrix);
  for (const double each : m) ASSERT_EQ(std::abs(each), std::abs(m[0]));
  EXPECT_GT(std::abs(m[0]), 0);
  // Vectors, and the table of labels, go on as they did.
  for (const char* name : {"blocks.0.attn.qkv.bias", "y_embedder.embedding_table.weight"}) {
    EXPECT_NE(values(at("after"), second + name), values(at("warm"), second + name)) << name;
    EXPECT_TRUE(unsent(at("after"), name).empty()) << name;
  }
}

TEST_F(OneBitRuns, KeepTheSumOfWhatIsNotSentForAnyNumberOfGroups) {
  warm(4, 2);
  train(kind("onebit"), 4, Shard::off, at("warm"), 2, at("4"));
  const std::vector<double> before = unsent(at("4"), kMatrix);
  ASSERT_FALSE(before.empty());
  std::string from = "4";
  for (const std::string to : {"3", "5", "2"}) {
    train(kind("onebit"), std::stoi(to), Shard::grads, at(from), 0, at(to));
    const std::vector<double> now = unsent(at(to), kMatrix);
    double off = 0, all = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      off += std::pow(now[i] - before[i], 2);
      all += before[i] * before[i];
    }
    EXPECT_GT(all, 0);
    EXPECT_LE(off, 1e-12 * all) << to;
    from = to;
  }
}

// A gradient and a momentum are not the same thing: neither is taken for the other.
TEST_F(OneBitRuns, MixNoGradientsWithMomenta) {
  warm(2, 2);
  train(kind("onebit"), 2, Shard::off, at("warm"), 1, at("momenta"));
  train(kind("topk:0.1"), 2, Shard::off, "", 1, at("gradients"));
  for (const auto& [code, from] :
       {std::pair{"topk:0.1", "momenta"}, {"fp32", "momenta"}, {"onebit", "gradients"}}) {
    try {
      train(kind(code), 2, Shard::off, at(from), 0, at("none"));
      ADD_FAILURE() << code << " with " << from;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::disk);
      EXPECT_NE(std::string(e.what()).find("not sent"), std::string::npos) << e.what();
    }
  }
}

TEST_F(OneBitRuns, BeginWithASecondMomentOrNotAtAll) {
  try {
    train(kind("onebit"), 2, Shard::off, "", 1, at("none"));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no second moments"), std::string::npos) << e.what();
  }
}

// Frozen moments that go on again are corrected as before: AdamW's steps do not jump.
TEST_F(OneBitRuns, ThatGoOnAsAdamWTakeTheirSecondMomentsAsTheyWere) {
  warm(2, 2);
  train(kind("onebit"), 2, Shard::off, at("warm"), 3, at("frozen"));
  ThreadRanks::run(2, [&](Peers& peers) {
    TrainOptions o = options(kind("fp32"), {2, 1, peers.rank()});
    o.drops_unsent = true;
    const PlannedRun plan = planned(o);
    TrainingRun run(o, *source_, plan, machine_, &peers);
    start(run, at("frozen"));
    run.save(at("thawed"));
  });
  const std::string name = std::string(kSecondMoment) + kMatrix;
  const std::vector<double> then = values(at("frozen"), name), now = values(at("thawed"), name);
  const double beta2 = step_spec(kBatch).beta2;
  for (size_t i = 0; i < then.size(); ++i) {
    const double corrected = then[i] / (1 - beta2 * beta2);
    ASSERT_NEAR(now[i] / (1 - std::pow(beta2, 5)), corrected, 1e-5 * corrected);
  }
  EXPECT_TRUE(unsent(at("thawed"), kMatrix).empty());
}

}  // namespace
}  // namespace ebb
