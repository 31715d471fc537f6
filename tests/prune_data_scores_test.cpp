// Scores from data: what they are made of, and that the budget has no part in them.
#include "prune/data_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <set>

#include "data/array_source.h"
#include "data/order.h"
#include "data_fixture.h"
#include "model/scoring.h"
#include "model_fixture.h"
#include "prune/compensation.h"
#include "prune_fixture.h"
#include "temp_folder.h"

namespace ebb {
namespace {

constexpr int64_t kCount = 50;
constexpr uint64_t kSeed = 5;

class DataScoresTest : public testing::Test {
 protected:
  DataScoresTest() : config_(prunable_config(2)) {
    for (int64_t i = 0; i < kCount * 64; ++i) {
      pixels_.push_back(static_cast<uint8_t>(i * 37 + i / 64 * 11));
    }
    for (int32_t i = 0; i < kCount; ++i) labels_.push_back(i % 3);
    source_ = pixel_source(pixels_, labels_, 8, 1);
  }

  void write(const Written& w) const { write_checkpoint(path(), w); }
  std::filesystem::path path() const { return temp_.path() / "a.safetensors"; }
  DataScores scores(ScoreBy by, int64_t samples = 40, int64_t budget = int64_t{1} << 30) const {
    const SafetensorsReader file(path());
    DataScoring options;
    options.samples = samples;
    options.seed = kSeed;
    options.budget_bytes = budget;
    return data_scores(file, read_info(file), by, *source_, options, middling_machine());
  }

  const OneThread one_thread_;
  DitConfig config_;
  std::vector<uint8_t> pixels_;
  std::vector<int32_t> labels_;
  std::unique_ptr<Source> source_;
  TempFolder temp_;
};

// The mean over two batches of 32, each of whose gradients a step gives that is written by hand.
TEST_F(DataScoresTest, TaylorIsWeightTimesGradientOfWhatAStructureIsMultipliedWithLast) {
  write({info_of(config_)});
  const DataScores found = scores(ScoreBy::taylor);
  EXPECT_EQ(found.samples, 64);
  EXPECT_TRUE(found.scores.comparable);
  StepSpec spec;
  spec.batch = 32;
  spec.update = spec.ema = false;
  Rig rig({write_step(config_, spec, cpu_device())});
  for (const ParamSpec& p : parameters(config_)) {
    Column values;
    for (int64_t i = 0; i < element_count(p.shape); ++i) values.push_back(value_of(p.name, i));
    rig.set(p.name, values);
  }
  const Order order(kSeed, kCount);
  std::vector<double> head(4), unit(128);
  double block = 0;
  for (int64_t k = 0; k < 2; ++k) {
    Column x, y;
    for (int64_t i = 0; i < 32; ++i) {
      const auto sample = data_fixture::load(*source_, order.at(k * 32 + i));
      x.insert(x.end(), sample.x.begin(), sample.x.end());
      y.push_back(sample.label);
    }
    rig.set(kBatchX, x);
    rig.set(kBatchY, y);
    Scalars scalars;
    scalars.seed = kSeed;
    scalars.step = k;
    rig.executor().run(scalars);
    const auto by_column = [&](const std::string& name, int64_t width, std::vector<double>& to) {
      const Column w = rig.get(name + ".weight"), g = rig.get("grad." + name + ".weight");
      const Column b = rig.get(name + ".bias"), db = rig.get("grad." + name + ".bias");
      const auto columns = std::ssize(to) * width;
      std::vector<double> sums(to.size());
      for (int64_t i = 0; i < std::ssize(w); ++i) sums[i % columns / width] += w[i] * g[i];
      double all = 0;
      for (size_t i = 0; i < to.size(); ++i) {
        to[i] += std::abs(sums[i]) / 2;
        all += sums[i];
      }
      for (size_t i = 0; i < b.size(); ++i) all += b[i] * db[i];
      return all;
    };
    block += std::abs(by_column("blocks.1.attn.proj", 8, head) +
                      by_column("blocks.1.mlp.fc2", 1, unit)) /
             2;
  }
  const auto near = [](const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    const double largest = *std::max_element(b.begin(), b.end());
    EXPECT_GT(largest, 0);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5 * largest) << i;
  };
  near(found.scores.blocks[1].heads, head);
  near(found.scores.blocks[1].mlp, unit);
  EXPECT_NEAR(found.scores.blocks[1].block, block, 1e-5 * block);
}

// A head whose values are a constant gives that constant, whatever it attends to; an MLP unit that
// sees nothing gives GELU of its bias.
TEST_F(DataScoresTest, AConstantHasThatMeanAndNoFluctuation) {
  const auto head_value = [](int64_t k) { return 0.3f - 0.1f * static_cast<float>(k); };
  Written w{info_of(config_)};
  w.value = [&](const std::string& name, int64_t i) {
    const auto rows = [&](int64_t columns, int64_t first, int64_t count) {
      return i / columns >= first && i / columns < first + count;
    };
    // Head 1 of block 0: rows 8 to 15 of v, which begins at 64. Unit 5 of block 1.
    if (name == "blocks.0.attn.qkv.weight" && rows(32, 72, 8)) return 0.0f;
    if (name == "blocks.0.attn.qkv.bias" && rows(1, 72, 8)) return head_value(i - 72);
    if (name == "blocks.1.mlp.fc1.weight" && rows(32, 5, 1)) return 0.0f;
    if (name == "blocks.1.mlp.fc1.bias" && i == 5) return -0.7f;
    return value_of(name, i);
  };
  write(w);
  const double gelu =
      0.5 * -0.7 *
      (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (-0.7 - 0.044715 * 0.7 * 0.7 * 0.7)));
  const DataScores moves = scores(ScoreBy::fluctuation), size = scores(ScoreBy::activation);
  EXPECT_FALSE(moves.scores.comparable);
  EXPECT_FALSE(size.scores.comparable);
  double squares = 0;
  for (int64_t k = 0; k < 8; ++k) {
    EXPECT_NEAR(moves.means[0].attention[8 + k], head_value(k), 1e-6);
    squares += std::pow(head_value(k), 2);
  }
  EXPECT_NEAR(moves.means[1].mlp[5], gelu, 1e-6);
  EXPECT_EQ(moves.means[1].mlp, size.means[1].mlp);
  EXPECT_NEAR(size.scores.blocks[0].heads[1], std::sqrt(64 * squares), 1e-5);
  EXPECT_NEAR(size.scores.blocks[1].mlp[5], std::sqrt(64) * -gelu, 1e-5);
  const auto least = [](const std::vector<double>& scores) {
    return std::min_element(scores.begin(), scores.end()) - scores.begin();
  };
  EXPECT_EQ(least(moves.scores.blocks[0].heads), 1);
  EXPECT_EQ(least(moves.scores.blocks[1].mlp), 5);
  EXPECT_LT(moves.scores.blocks[1].mlp[5], 1e-9 * moves.scores.blocks[1].mlp[6]);
}

// Var(g) ||W2||^2: twice the weights are four times the score, and a block is the sum of its own.
TEST_F(DataScoresTest, FluctuationIsInUnitsOfTheOutput) {
  write({info_of(config_)});
  const DataScores once = scores(ScoreBy::fluctuation);
  Written w{info_of(config_)};
  w.value = [](const std::string& name, int64_t i) {
    const bool column = name == "blocks.1.mlp.fc2.weight" && i % 128 == 9;
    return (column ? 2 : 1) * value_of(name, i);
  };
  write(w);
  const DataScores twice = scores(ScoreBy::fluctuation);
  const auto& units = once.scores.blocks[1].mlp;
  EXPECT_NEAR(twice.scores.blocks[1].mlp[9], 4 * units[9], 1e-9 * units[9]);
  EXPECT_EQ(twice.scores.blocks[1].mlp[8], units[8]);
  double sum = 0;
  for (const auto& each : {once.scores.blocks[1].heads, units}) {
    for (const double score : each) sum += score;
  }
  EXPECT_NEAR(once.scores.blocks[1].block, sum, 1e-12 * sum);
}

TEST_F(DataScoresTest, TheBudgetChangesTheWayAndNoBit) {
  config_.blocks = {{0, 40}, {3, 128}, {4, 0}};  // half blocks too
  write({info_of(config_)});
  for (const ScoreBy by : {ScoreBy::taylor, ScoreBy::activation, ScoreBy::fluctuation}) {
    const DataScores ample = scores(by, 10);
    EXPECT_EQ(ample.samples, 10);
    std::set<int64_t> arenas = {ample.arena_bytes};
    bool refused = false;
    const int64_t most = middling_machine().outside_bytes + 2 * ample.arena_bytes;
    for (int64_t budget = most; !refused; budget -= ample.arena_bytes / 9) {
      try {
        const DataScores tight = scores(by, 10, budget);
        arenas.insert(tight.arena_bytes);
        EXPECT_LT(tight.arena_bytes, budget - middling_machine().outside_bytes);
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(tight.scores.blocks[i].heads, ample.scores.blocks[i].heads);
          EXPECT_EQ(tight.scores.blocks[i].mlp, ample.scores.blocks[i].mlp);
          EXPECT_EQ(tight.scores.blocks[i].block, ample.scores.blocks[i].block);
        }
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::budget) << e.what();
        EXPECT_NE(std::string(e.what()).find(score_name(by)), std::string::npos) << e.what();
        refused = true;
      }
    }
    EXPECT_GT(arenas.size(), 2u) << score_name(by);
  }
}

TEST_F(DataScoresTest, OtherSeedsLookAtOtherSamples) {
  write({info_of(config_)});
  const DataScores some = scores(ScoreBy::activation, 32);
  const DataScores more = scores(ScoreBy::activation, 33);
  EXPECT_EQ(some.samples, 32);
  EXPECT_EQ(more.samples, 64);
  EXPECT_NE(some.means[0].mlp, more.means[0].mlp);
}

TEST_F(DataScoresTest, DataOfAnotherShapeKindOrNumberOfClassesIsRefused) {
  const auto refused = [&](const CheckpointInfo& info, const std::string& noun) {
    write({info});
    for (const ScoreBy by : {ScoreBy::taylor, ScoreBy::fluctuation}) {
      try {
        scores(by);
        ADD_FAILURE() << noun;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::data) << e.what();
        EXPECT_NE(std::string(e.what()).find(noun), std::string::npos) << e.what();
      }
    }
  };
  CheckpointInfo info = info_of(config_);
  info.config.image_size = 16;
  refused(info, "16 x 16");
  info = info_of(config_);
  info.config.channels = 3;
  refused(info, "3 and 8 x 8");
  info = info_of(config_);
  info.config.classes = 4;
  refused(info, "4");
  info = info_of(config_);
  info.pixels = false;
  refused(info, "latents");
  info = info_of(config_);
  info.config.classes = 0;  // labels are not looked at
  write({info});
  EXPECT_EQ(scores(ScoreBy::activation).samples, 64);
}

TEST_F(DataScoresTest, DamagedFilesAndWeightsThatAreNotFiniteAreNamed) {
  Written w{info_of(config_)};
  w.value = [](const std::string& name, int64_t i) {
    return name == "blocks.1.mlp.fc1.weight" && i == 7 ? NAN : value_of(name, i);
  };
  write(w);
  try {
    scores(ScoreBy::activation);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::numbers);
    EXPECT_NE(std::string(e.what()).find("blocks.1.mlp.fc1.weight"), std::string::npos);
  }
  write({info_of(config_)});
  std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-9, std::ios::end);
  file.put('\x55');
  file.close();
  try {
    scores(ScoreBy::taylor);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::disk) << e.what();
  }
}

// Of weights and of the average, each by its own columns; what loses nothing gains nothing.
TEST_F(DataScoresTest, CompensationIsTheMeanTimesTheColumnsThatGo) {
  write({info_of(config_)});
  const SafetensorsReader file(path());
  const std::vector<BlockMeans> means = scores(ScoreBy::fluctuation).means;
  Survivors kept = all_of(config_);
  std::erase_if(kept[0].mlp, [](int64_t i) { return i % 5 == 0; });
  kept[1].heads = {0, 3};
  const Gains gains = compensation(file, config_, kept, means);
  ASSERT_EQ(gains.size(), 4u);
  for (const std::string prefix : {"", "ema."}) {
    const std::string fc2 = prefix + "blocks.0.mlp.fc2", proj = prefix + "blocks.1.attn.proj";
    for (const int64_t row : {0, 31}) {
      double of_units = 0, of_heads = 0;
      for (int64_t j = 0; j < 128; j += 5) {
        of_units += value_of(fc2 + ".weight", row * 128 + j) * means[0].mlp[j];
      }
      for (int64_t j = 8; j < 24; ++j) {
        of_heads += value_of(proj + ".weight", row * 32 + j) * means[1].attention[j];
      }
      EXPECT_NEAR(gains.at(fc2 + ".bias")[row], of_units, 1e-7);
      EXPECT_NEAR(gains.at(proj + ".bias")[row], of_heads, 1e-7);
    }
  }
}

}  // namespace
}  // namespace ebb
