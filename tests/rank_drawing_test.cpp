// Pictures that all ranks of a run draw together.
#include "rank_fixture.h"
#include "sample/shared_drawing.h"

namespace ebb {
namespace {

// The bytes of every buffer that is a tensor by itself.
std::map<std::string, std::string> stored(const State& state) {
  std::map<std::string, std::string> all;
  for (const StateTensor& tensor : state.tensors()) {
    if (tensor.is_mask()) continue;
    std::string& bytes = all[tensor.name];
    bytes.resize(static_cast<size_t>(tensor.stored_bytes()));
    state.read_stored(tensor, 0, bytes.data(), tensor.stored_bytes());
  }
  return all;
}

class RankDrawing : public RankRuns {
 protected:
  enum class Weights { raw, average };

  // A run of two steps that is about to draw: each(run, peers) on every rank.
  void about_to_draw(const StateKind& kind, const RankPlace& ranks, Shard shard, Weights weights,
                     const Each& each) const {
    ThreadRanks::run(ranks.ranks(), [&](Peers& peers) {
      RankPlace place = ranks;
      place.rank = peers.rank();
      TrainOptions o = options(kind, place, shard);
      SamplerSpec sampler;
      sampler.kind =
          kind.config.objective == Objective::flow ? SamplerKind::heun : SamplerKind::ddpm;
      sampler.steps = kSteps;
      sampler.guidance = 1.5f;
      sampler.storage = kind.storage;
      sampler.weights_prefix = weights == Weights::raw ? "" : kAverage;
      o.sampler = sampler;
      sampler.place = place;
      sampler.shard = shard;
      sampler.batch = 2 + peers.rank() % 2;  // ranks can have room for different numbers
      const PlannedRun plan = planned(o, sampler);
      TrainingRun run(o, *source_, plan, machine_, &peers);
      run.initialise();
      for (int i = 0; i < 2; ++i) run.step();
      each(run, peers);
    });
  }

  // All values, in the order of places: of one picture, then of 13.
  std::vector<float> pictures(const StateKind& kind, const RankPlace& place, Shard shard,
                              Weights weights) const {
    std::vector<float> all;
    about_to_draw(kind, place, shard, weights, [&](TrainingRun& run, Peers& peers) {
      int64_t before = 0;
      for (const int64_t count : {1, 13}) {
        const auto take = [&](int64_t first, int64_t n, const float* values) {
          EXPECT_EQ(peers.rank(), 0);
          EXPECT_EQ((before + first) * kEach, std::ssize(all));
          all.insert(all.end(), values, values + n * kEach);
        };
        const auto label = [&](int64_t at) {
          EXPECT_LT(at, count);
          return label_of(at);
        };
        EXPECT_EQ(run.draw(count, label, 11, take, [] { return false; }, {}), Drawn::all);
        before += count;
      }
    });
    EXPECT_EQ(std::ssize(all), (1 + 13) * kEach);
    return all;
  }

  static int32_t label_of(int64_t place) { return static_cast<int32_t>(place % 5); }

  static constexpr int kSteps = 3;
  static constexpr int64_t kEach = 3 * 8 * 8;
};

TEST_F(RankDrawing, PicturesAreThoseOfOneRank) {
  for (const StateKind& kind : state_kinds()) {
    SCOPED_TRACE(kind.name);
    RankPlace stages{1, 2};
    stages.cuts = {1};
    const auto average = pictures(kind, {}, Shard::off, Weights::average);
    const auto raw = pictures(kind, {}, Shard::off, Weights::raw);
    EXPECT_NE(average, raw);
    for (const int ranks : {2, 3}) {
      for (const Shard shard : {Shard::off, Shard::grads, Shard::weights}) {
        EXPECT_EQ(pictures(kind, {ranks}, shard, Weights::average), average);
        EXPECT_EQ(pictures(kind, {ranks}, shard, Weights::raw), raw);
      }
    }
    EXPECT_EQ(pictures(kind, stages, Shard::off, Weights::average), average);
    EXPECT_EQ(pictures(kind, stages, Shard::off, Weights::raw), raw);
  }
}

// Every way in which drawing ends, on every rank, leaves the state as it was, and all ranks know.
TEST_F(RankDrawing, TheStateIsAfterwardsWhatItWas) {
  enum class End { all, stop, label_fails, watch_fails, take_fails, take_throws };
  for (const StateKind& kind : state_kinds()) {
    for (const End end : {End::all, End::stop, End::label_fails, End::watch_fails, End::take_fails,
                          End::take_throws}) {
      for (const int who : {0, 2}) {
        SCOPED_TRACE(fmt::format("{}: end {} by rank {}", kind.name, static_cast<int>(end), who));
        about_to_draw(
            kind, {3}, Shard::grads, Weights::average, [&](TrainingRun& run, Peers& peers) {
              const auto before = stored(run.state());
              const bool own = peers.rank() == who;
              int calls = 0, taken = 0;
              const auto label = [&](int64_t place) {
                if (end == End::label_fails && own && place > 6) fail(Exit::usage, "no label");
                return label_of(place);
              };
              const auto take = [&](int64_t, int64_t, const float*) {
                ++taken;
                if (end == End::take_fails) fail(Exit::disk, "full");
                if (end == End::take_throws) throw std::runtime_error("full");
              };
              const auto stop = [&] { return end == End::stop && own && ++calls == kSteps + 2; };
              const auto watch = [&](int64_t, int step) {
                if (end == End::watch_fails && own && step == kSteps) fail(Exit::disk, "unwatched");
              };
              const auto draw = [&] { return run.draw(13, label, 11, take, stop, watch); };
              if (end == End::all) {
                EXPECT_EQ(draw(), Drawn::all);
              } else if (end == End::stop) {
                EXPECT_EQ(draw(), Drawn::stopped);
                EXPECT_EQ(taken, peers.rank() == 0 ? 3 : 0) << "the first round";
              } else if (end == End::take_throws) {
                EXPECT_THROW(draw(), std::exception);
              } else {
                EXPECT_THROW(draw(), Error);
              }
              EXPECT_TRUE(stored(run.state()) == before);
              EXPECT_TRUE(run.sound());
              run.step();  // nobody is left behind
            });
      }
    }
  }
}

TEST_F(RankDrawing, WhatIsNotFiniteIsKnownToAll) {
  const StateKind kind = state_kinds()[0];
  about_to_draw(kind, {3}, Shard::grads, Weights::average, [&](TrainingRun& run, Peers&) {
    State& state = run.state();
    const auto parameter = parameters(kind.config).back();  // with the last rank
    if (const StateTensor* average = state.find(kAverage + parameter.name)) {
      const float nan = NAN;
      state.write(*average, 0, &nan, 1);
    }
    const auto take = [](int64_t, int64_t, const float*) { FAIL(); };
    EXPECT_EQ(run.draw(4, label_of, 1, take, [] { return false; }, {}), Drawn::not_finite);
    EXPECT_TRUE(run.sound());
  });
}

}  // namespace
}  // namespace ebb
