// The state of a run whose ranks have parts of the blocks: where it begins, how it becomes one
// file, and who goes on with it.
#include "data/order.h"
#include "file_limit.h"
#include "rank_fixture.h"
#include "state/strips.h"

namespace ebb {
namespace {

class TensorState : public RankRuns {
 protected:
  struct Layout {
    int data = 1, pipe = 1, tensor = 1;
    Shard shard = Shard::off;
  };

  static DitConfig model() {
    DitConfig config = small_config();
    config.width = 32;
    config.qk_norm = QkNormKind::layer;
    config.blocks = {{3, 50}, {4, 7}, {5, 33}, {3, 64}};
    return config;
  }

  void on(const StateKind& kind, const Layout& layout, const Each& each,
          const std::optional<SamplerSpec>& drawing = std::nullopt,
          const Source* source = nullptr) const {
    const int ranks = layout.data * layout.pipe * layout.tensor;
    const Source& samples = source != nullptr ? *source : *source_;
    const auto body = [&](Peers& peers) {
      RankPlace place{layout.data, layout.pipe, peers.rank()};
      place.tensor = layout.tensor;
      for (int i = 1; i < layout.pipe; ++i) {
        place.cuts.push_back(kind.config.depth() * i / layout.pipe);
      }
      TrainOptions o = options(kind, place, layout.shard);
      o.step.leaves = kLeaves;
      std::optional<SamplerSpec> sampler = drawing;
      if (sampler) {
        sampler->storage = kind.storage;
        sampler->place = place;
        sampler->shard = layout.shard;
        sampler->batch = 2 + peers.rank() % 2;
      }
      o.sampler = sampler;
      const PlannedRun plan = planned(o, samples, sampler);
      TrainingRun run(o, samples, plan, machine_, ranks == 1 ? nullptr : &peers);
      each(run, peers);
    };
    ThreadRanks::run(ranks, body);
  }

  void train(const StateKind& kind, const Layout& layout, const std::filesystem::path& from,
             int steps, const std::filesystem::path& to) const {
    on(kind, layout, [&](TrainingRun& run, Peers&) {
      start(run, from);
      for (int i = 0; i < steps; ++i) run.step();
      run.save(to);
    });
  }

  static std::vector<Layout> layouts() {
    return {{1, 1, 2}, {1, 1, 3}, {2, 1, 2, Shard::grads}, {2, 1, 3, Shard::weights}, {2, 2, 2}};
  }
  static constexpr int kLeaves = 2;
};

TEST_F(TensorState, APartBeginsWithTheBitsOfTheWholeAndIsSavedWithThem) {
  StateKind halved{"averages in bf16", model()};
  halved.storage.ema = DType::bf16;
  for (const StateKind& kind : {StateKind{"fp32", model()}, halved}) {
    train(kind, {}, "", 0, at("alone"));
    const std::string alone = bytes_of(at("alone"));
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(fmt::format("{}: data={} pipe={} tensor={}", kind.name, layout.data, layout.pipe,
                               layout.tensor));
      train(kind, layout, "", 0, at("together"));
      EXPECT_TRUE(bytes_of(at("together")) == alone);
    }
  }
}

// Moments, too: they are there after some steps.
TEST_F(TensorState, AnyRanksLoadAndSaveTheFileOfOne) {
  const StateKind kind{"fp32", model()};
  train(kind, {}, "", 3, at("alone"));
  const std::string alone = bytes_of(at("alone"));
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(fmt::format("data={} pipe={} tensor={}", layout.data, layout.pipe, layout.tensor));
    train(kind, layout, at("alone"), 0, at("together"));
    EXPECT_TRUE(bytes_of(at("together")) == alone);
  }
}

// Every rank is brought the parts of others, layer by layer.
TEST_F(TensorState, PicturesAreThoseOfOneRank) {
  StateKind halved{"averages in bf16", model()};
  halved.storage.ema = DType::bf16;
  for (const StateKind& kind : {StateKind{"fp32", model()}, halved}) {
    train(kind, {}, "", 3, at("trained"));
    for (const char* prefix : {"", kAverage}) {
      SamplerSpec sampler;
      sampler.kind = SamplerKind::ddpm;
      sampler.steps = 3;
      sampler.guidance = 1.5f;
      sampler.weights_prefix = prefix;
      const auto pictures = [&](const Layout& layout) {
        std::vector<float> all;
        const Each draw = [&](TrainingRun& run, Peers&) {
          start(run, at("trained"));
          const auto take = [&](int64_t, int64_t n, const float* values) {
            all.insert(all.end(), values, values + n * 3 * 8 * 8);
          };
          const auto label = [](int64_t place) { return static_cast<int32_t>(place % 5); };
          EXPECT_EQ(run.draw(7, label, 11, take, [] { return false; }, {}), Drawn::all);
        };
        on(kind, layout, draw, sampler);
        return all;
      };
      const std::vector<float> alone = pictures({});
      ASSERT_EQ(std::ssize(alone), 7 * 3 * 8 * 8);
      for (const Layout& layout : layouts()) {
        SCOPED_TRACE(fmt::format("{} {}: data={} pipe={} tensor={}", prefix, kind.name, layout.data,
                                 layout.pipe, layout.tensor));
        EXPECT_TRUE(pictures(layout) == alone);
      }
    }
  }
}

// The one rank that takes them tells the others, and nobody has updated anything.
TEST_F(TensorState, SamplesThatCannotBeReadEndTheStepOfAllWithNothingDone) {
  const StateKind kind{"fp32", model()};
  const OneMissing source(*source_, Order(3, kSamples).at(kBatch + 3));
  for (const Layout& layout : {Layout{1, 1, 2}, Layout{2, 2, 2}}) {
    train(kind, layout, "", 1, at("before"));
    const Each each = [&](TrainingRun& run, Peers&) {
      run.initialise();
      run.step();
      try {
        run.step();
        ADD_FAILURE() << "a step without all of its samples";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::data) << e.what();
      }
      EXPECT_TRUE(run.sound());
      run.save(at("after"));
    };
    on(kind, layout, each, std::nullopt, &source);
    EXPECT_TRUE(bytes_of(at("before")) == bytes_of(at("after")));
  }
}

// Whatever blocks of codes begin and end with a part: what they say is in the file.
TEST_F(TensorState, CodedMomentsAreReadFromAnywhere) {
  StateKind kind{"8-bit moments", model()};
  kind.storage.moments = Moments::coded;
  on(kind, {1, 1, 2}, [&](TrainingRun& run, Peers&) {
    run.initialise();
    for (int i = 0; i < 4; ++i) run.step();  // the first ones leave most gradients zero
    int coded = 0;
    for (const StateTensor& tensor : run.state().tensors()) {
      if (tensor.type != DType::u8) continue;
      ++coded;
      std::vector<float> all(static_cast<size_t>(tensor.count()));
      run.state().read(tensor, 0, all.data(), tensor.count());
      for (const int64_t first : {1, 255, 256, 300, 700}) {
        if (first >= tensor.count()) continue;
        for (const int64_t count : {int64_t{1}, int64_t{3}, tensor.count() - first}) {
          const int64_t n = std::min(count, tensor.count() - first);
          std::vector<float> some(static_cast<size_t>(n));
          run.state().read(tensor, first, some.data(), n);
          EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first)) << tensor.name;
        }
      }
    }
    EXPECT_GT(coded, 10);
  });
}

// n ranks save, m go on: one rank's numbers but for rounding.
TEST_F(TensorState, AnotherNumberOfRanksGoesOn) {
  const StateKind kind{"fp32", model()};
  train(kind, {}, "", 4, at("alone"));
  train(kind, {1, 1, 2}, "", 2, at("first"));
  train(kind, {2, 1, 3, Shard::grads}, at("first"), 1, at("second"));
  train(kind, {}, at("second"), 1, at("third"));
  const SafetensorsReader alone(at("alone")), third(at("third"));
  ASSERT_EQ(alone.tensors().size(), third.tensors().size());
  for (const TensorEntry& entry : alone.tensors()) {
    if (!entry.name.starts_with("m.")) continue;
    std::vector<float> a(static_cast<size_t>(entry.count())), b(a.size());
    alone.read_f32_part(entry, 0, a.data(), entry.count());
    third.read_f32_part(*third.find(entry.name), 0, b.data(), entry.count());
    double off = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      off += std::pow(static_cast<double>(a[i]) - b[i], 2);
      size += std::pow(static_cast<double>(a[i]), 2);
    }
    EXPECT_LE(std::sqrt(off), 1e-3 * std::sqrt(size) + 1e-9) << entry.name;
  }
}

// Where it fills up amid the parts of tensors, which others are about to send.
TEST_F(TensorState, AFullDiskIsTheSameErrorOnEveryRankAndLeavesNothing) {
  const StateKind kind{"fp32", model()};
  train(kind, {}, "", 0, at("alone"));
  const std::string alone = bytes_of(at("alone"));
  for (const double share : {0.0, 0.3, 0.6, 0.999}) {
    on(kind, {1, 2, 2}, [&](TrainingRun& run, Peers& peers) {
      run.initialise();
      {
        std::optional<FileLimit> full;
        const auto limit = static_cast<rlim_t>(share * static_cast<double>(alone.size()));
        if (peers.rank() == 0) full.emplace(limit);
        try {
          run.save(at("none"));
          ADD_FAILURE() << "saved within " << limit << " bytes";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), Exit::disk) << e.what();
          EXPECT_NE(std::string(e.what()).find("File too large"), std::string::npos) << e.what();
        }
      }
      run.save(at("together"));
    });
    EXPECT_FALSE(std::filesystem::exists(at("none")));
    EXPECT_TRUE(bytes_of(at("together")) == alone);
  }
}

// However large they may be.
TEST_F(TensorState, StripsComeTogetherAsTheWhole) {
  const DitConfig config = model();
  for (const int64_t most_bytes : {1, 300, 5000, 1 << 20}) {
    RankPlace place{1};
    place.tensor = 3;
    const CutTensors cut(config, place);
    int64_t several = 0;  // strips of several rows
    for (const ParamSpec& spec : parameters(config)) {
      const std::vector<Slice>* const parts = cut.find(kFirstMoment + spec.name);
      if (parts == nullptr) continue;
      const int64_t count = spec.count();
      std::vector<std::vector<int64_t>> own;  // of each part, where its numbers are in the whole
      for (const Slice& slice : *parts) {
        own.emplace_back();
        const int64_t row = slice.columns ? spec.rows() : spec.columns();
        int64_t along = 0;
        for (const Slice::Run& run : slice.runs) along += run.count;
        slice.each_run(0, along * row, [&](int64_t whole, int64_t, int64_t n) {
          for (int64_t i = 0; i < n; ++i) own.back().push_back(whole + i);
        });
      }
      int64_t next = 0;
      each_strip(*parts, most_bytes, [&](const Strip& strip) {
        several += strip.rows > 1;
        for (int64_t row = 0; row < strip.rows; ++row) {
          for (size_t p = 0; p < own.size(); ++p) {
            const int64_t width = strip.own[p].count / strip.rows;
            for (int64_t i = 0; i < width; ++i) {
              EXPECT_EQ(own[p].at(strip.own[p].first + row * width + i), next++) << spec.name;
            }
          }
        }
      });
      EXPECT_EQ(next, count) << spec.name;
    }
    EXPECT_EQ(several > 0, most_bytes > 1);
  }
}

}  // namespace
}  // namespace ebb
