// What ranks have not sent to each other yet: it belongs to the run, whoever goes on with it.
#include "rank_fixture.h"

namespace ebb {
namespace {

class Unsent : public RankRuns {
 protected:
  static StateKind kind(const char* text) {
    StateKind kind{text, small_config()};
    if (*text != 0) kind.storage.exchange = parse_exchange(text).value();
    return kind;
  }

  // Of all groups together, by tensor.
  static std::map<std::string, std::vector<double>> sums(const std::filesystem::path& path) {
    const SafetensorsReader file(path);
    std::map<std::string, std::vector<double>> all;
    for (const TensorEntry& entry : file.tensors()) {
      const auto rest = rest_in(entry.name);
      if (!rest) continue;
      std::vector<double> values(entry.count());
      file.read_f64(entry, values.data(), std::ssize(values));
      std::vector<double>& sum = all[rest->tensor];
      sum.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
    return all;
  }

  void pass_on(const StateKind& kind, int ranks, const char* from, const char* to) const {
    train(kind, ranks, Shard::off, at(from), 0, at(to));
  }
};

TEST_F(Unsent, IsSavedAndGoesOnWithTheBitsOfARunThatWasNeverStopped) {
  for (const char* text : {"bf16+feedback", "topk:0.1", "randomk:0.1", "powersgd:2"}) {
    for (const Shard shard : {Shard::off, Shard::grads}) {
      SCOPED_TRACE(fmt::format("{}, shard {}", text, shard == Shard::grads));
      train(kind(text), 3, shard, "", 4, at("whole"));
      train(kind(text), 3, shard, "", 2, at("half"));
      train(kind(text), 3, shard, at("half"), 2, at("rest"));
      EXPECT_TRUE(bytes_of(at("rest")) == bytes_of(at("whole")));
    }
  }
}

TEST_F(Unsent, ItsSumStaysWhoeverHasIt) {
  for (const char* text : {"topk:0.1", "powersgd:2", "bf16+feedback"}) {
    train(kind(text), 4, Shard::off, "", 2, at("4"));
    const auto before = sums(at("4"));
    ASSERT_GT(before.size(), 5u);
    const char* from = "4";
    for (const char* to : {"3", "5", "2"}) {
      pass_on(kind(text), std::atoi(to), from, to);
      const auto now = sums(at(to));
      ASSERT_EQ(now.size(), before.size());
      const double most = text == std::string("bf16+feedback") ? 0.02 : 1e-6;
      for (const auto& [name, sum] : before) {
        double off = 0, all = 0;
        for (size_t i = 0; i < sum.size(); ++i) {
          off += std::pow(now.at(name)[i] - sum[i], 2);
          all += sum[i] * sum[i];
        }
        EXPECT_LE(off, most * most * all) << name << " of " << to;
      }
      from = to;
    }
  }
}

// A run that keeps it on a disk has the files of one that keeps it in memory, and either goes on
// with the other's, over another number of ranks too.
TEST_F(Unsent, LiesOnADiskAsItDoesInMemory) {
  for (const char* text : {"bf16+feedback", "topk:0.1", "powersgd:2"}) {
    SCOPED_TRACE(text);
    StateKind here = kind(text);
    here.config.width = 32;
    StateKind away = here;
    away.offload = rests_to_disk(false);
    train(here, 3, Shard::off, "", 2, at("here"));
    train(away, 3, Shard::off, "", 2, at("away"));
    EXPECT_TRUE(bytes_of(at("here")) == bytes_of(at("away")));
    train(here, 2, Shard::grads, at("away"), 1, at("back"));
    train(away, 2, Shard::grads, at("here"), 1, at("forth"));
    EXPECT_TRUE(bytes_of(at("back")) == bytes_of(at("forth")));
  }
}

// It is the same thing whatever code left it.
TEST_F(Unsent, GoesOnUnderAnotherCode) {
  train(kind("topk:0.1"), 2, Shard::off, "", 2, at("top"));
  pass_on(kind("randomk:0.2"), 2, "top", "some");
  EXPECT_EQ(sums(at("some")), sums(at("top")));
}

TEST_F(Unsent, IsNotDroppedInSilence) {
  train(kind("topk:0.1"), 2, Shard::off, "", 2, at("top"));
  // The last sends matrices as small as these whole, and keeps nothing of them.
  for (const char* text : {"", "bf16", "int8", "powersgd:32"}) {
    const StateKind other = kind(text);
    for (const int ranks : {1, 2}) {
      try {
        train(other, ranks, Shard::off, at("top"), 0, at("none"));
        ADD_FAILURE() << text << " over " << ranks;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::disk);
        EXPECT_NE(std::string(e.what()).find("not sent"), std::string::npos) << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace ebb
