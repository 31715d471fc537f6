// The packer, checked by a comparison of all pairs that knows nothing of how it works.
#include "plan/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model_fixture.h"

namespace ebb {
namespace {

using Blocks = std::vector<LiveBlock>;

bool together(const Lifetime& a, const Lifetime& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

// The most bytes alive at one moment, moment by moment.
int64_t most_alive(const Blocks& blocks) {
  int64_t most = 0;
  for (const LiveBlock& at : blocks) {
    int64_t alive = 0;
    for (const LiveBlock& b : blocks) {
      if (b.life.begin <= at.life.begin && at.life.begin < b.life.end) alive += b.size;
    }
    most = std::max(most, alive);
  }
  return most;
}

// No two blocks that live together overlap, none lies outside [0, peak), and peak is reached.
void expect_valid(const Blocks& blocks, const Packing& made) {
  ASSERT_EQ(made.offsets.size(), blocks.size());
  int64_t highest = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].life.empty() || blocks[i].size == 0) continue;
    ASSERT_GE(made.offsets[i], 0);
    highest = std::max(highest, made.offsets[i] + blocks[i].size);
    for (size_t j = 0; j < i; ++j) {
      if (blocks[j].size == 0 || !together(blocks[i].life, blocks[j].life)) continue;
      ASSERT_TRUE(made.offsets[i] + blocks[i].size <= made.offsets[j] ||
                  made.offsets[j] + blocks[j].size <= made.offsets[i])
          << "blocks " << j << " and " << i;
    }
  }
  ASSERT_EQ(made.peak, highest);
  ASSERT_EQ(liveness_bound(blocks), most_alive(blocks));
  ASSERT_GE(made.peak, liveness_bound(blocks));
}

void expect_at_bound(const Blocks& blocks) {
  const Packing made = pack(blocks);
  expect_valid(blocks, made);
  EXPECT_EQ(made.peak, most_alive(blocks));
}

Blocks random_blocks(std::mt19937_64& random, int most_blocks, int moments, int sizes) {
  Blocks blocks(random() % (most_blocks + 1));
  for (LiveBlock& b : blocks) {
    b.size = static_cast<int64_t>(random() % sizes) * Limits{}.alignment;
    b.life.begin = static_cast<int>(random() % moments);
    b.life.end = b.life.begin + static_cast<int>(random() % (moments - b.life.begin + 1));
  }
  return blocks;
}

TEST(Packing, NeverOverlapsInThousandsOfRandomCases) {
  std::mt19937_64 random(20240501);
  for (int i = 0; i < 6000; ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    const Blocks blocks = random_blocks(random, 2 + i % 14, 2 + i % 11, 2 + i % 9);
    expect_valid(blocks, pack(blocks));
    if (HasFatalFailure()) return;
  }
  for (int i = 0; i < 60; ++i) {
    const Blocks blocks = random_blocks(random, 200, 60, 1000);
    expect_valid(blocks, pack(blocks));
    if (HasFatalFailure()) return;
  }
}

// Mostly short lives, scattered over a long program, with a few that span much of it.
TEST(Packing, NeverOverlapsInLongPrograms) {
  std::mt19937_64 random(20240502);
  for (int i = 0; i < 20; ++i) {
    Blocks blocks = random_blocks(random, 800, 4000, 1000);
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int most = b % 8 == 0 ? 2000 : b % 8 == 1 ? 300 : 5;
      Lifetime& life = blocks[b].life;
      life.end = std::min(life.end, life.begin + most);
    }
    expect_valid(blocks, pack(blocks));
    if (HasFatalFailure()) return;
  }
}

TEST(Packing, GivesTheSamePlacesEachTime) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 200; ++i) {
    const Blocks blocks = random_blocks(random, 60, 20, 50);
    const Packing first = pack(blocks), second = pack(blocks);
    ASSERT_EQ(first.offsets, second.offsets);
    ASSERT_EQ(first.peak, second.peak);
  }
}

TEST(Packing, ReachesTheBoundOnNestedLives) {
  std::mt19937_64 random(5);
  for (int n = 1; n < 40; ++n) {
    Blocks blocks;
    for (int i = 0; i < n; ++i) {
      blocks.push_back(
          {static_cast<int64_t>(random() % 9 + 1) * Limits{}.alignment, {i, 2 * n - i}});
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    expect_at_bound(blocks);
  }
}

TEST(Packing, ReachesTheBoundOnDisjointLives) {
  std::mt19937_64 random(6);
  Blocks blocks;
  for (int i = 0; i < 50; ++i) {
    blocks.push_back({static_cast<int64_t>(random() % 9 + 1) * Limits{}.alignment, {i, i + 1}});
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  expect_at_bound(blocks);
}

// Saved on the way forward, freed on the way back, with scratch on top at every op: the shape of a
// training step.
TEST(Packing, ReachesTheBoundOnAStackWithScratch) {
  const int depth = 30;
  Blocks blocks;
  for (int i = 0; i < depth; ++i) {
    blocks.push_back({(1 + i % 3) * Limits{}.alignment, {i, 2 * depth - i}});
    blocks.push_back({2 * Limits{}.alignment, {i, i + 1}});
    blocks.push_back({2 * Limits{}.alignment, {2 * depth - i - 1, 2 * depth - i}});
  }
  expect_at_bound(blocks);
}

TEST(Packing, ReachesTheBoundWhenAllLiveTogether) {
  expect_at_bound({{64, {2, 5}}, {192, {2, 5}}, {128, {2, 5}}});
  expect_at_bound({{64, {0, 1}}});
}

// Greedy by size, lowest free offset: what pack() must not stop at.
int64_t greedy_peak(const Blocks& blocks) {
  std::vector<size_t> order(blocks.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::pair(blocks[i].size, blocks[i].life.end - blocks[i].life.begin);
    };
    return key(a) > key(b);
  });
  std::vector<int64_t> offsets(blocks.size(), -1);
  int64_t peak = 0;
  for (const size_t i : order) {
    int64_t offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t j = 0; j < blocks.size(); ++j) {
        if (offsets[j] < 0 || !together(blocks[i].life, blocks[j].life)) continue;
        if (offset + blocks[i].size <= offsets[j] || offsets[j] + blocks[j].size <= offset)
          continue;
        offset = offsets[j] + blocks[j].size;
        moved = true;
      }
    }
    offsets[i] = offset;
    peak = std::max(peak, offset + blocks[i].size);
  }
  return peak;
}

// Sizes in units of the alignment.
Blocks in_units(Blocks blocks) {
  for (LiveBlock& b : blocks) b.size *= Limits{}.alignment;
  return blocks;
}

TEST(Packing, TheSearchReachesTheBoundWhereGreedyBySizeDoesNot) {
  const Blocks all[] = {
      // The 2 is put on top of the 3 that it lives with, and the 1, which bridges the two times,
      // on top of both: the 4 then finds no room below 7.
      in_units({{2, {3, 4}}, {1, {2, 5}}, {3, {4, 6}}, {4, {5, 6}}, {3, {3, 4}}}),
      in_units({{2, {2, 4}}, {2, {2, 4}}, {2, {3, 6}}, {1, {4, 6}}, {3, {4, 5}}}),
      in_units({{2, {0, 1}}, {3, {0, 2}}, {1, {1, 3}}, {2, {0, 6}}, {4, {3, 5}}}),
      in_units({{3, {3, 6}},
                {3, {1, 2}},
                {3, {0, 5}},
                {1, {1, 3}},
                {3, {3, 4}},
                {4, {4, 6}},
                {3, {0, 4}}}),
      in_units({{1, {2, 3}},
                {2, {3, 6}},
                {3, {4, 6}},
                {4, {2, 5}},
                {1, {0, 6}},
                {2, {2, 4}},
                {2, {0, 4}}}),
  };
  for (const Blocks& blocks : all) {
    EXPECT_GT(greedy_peak(blocks), most_alive(blocks)) << "not a case that needs a search";
    expect_at_bound(blocks);
  }
}

Blocks blocks_of(const Program& program) {
  const std::vector<Lifetime> lives = lifetimes(program);
  Blocks blocks;
  for (size_t i = 0; i < lives.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (!buffer.resident) blocks.push_back({Limits{}.aligned(buffer.bytes()), lives[i]});
  }
  return blocks;
}

TEST(Packing, LeavesLessThanAThousandthOfADitStepUnused) {
  const std::pair<const char*, int64_t> cases[] = {{"DiT-S/2", 2}, {"DiT-S/2", 8},  {"DiT-S/2", 32},
                                                   {"DiT-B/4", 8}, {"DiT-B/4", 16}, {"DiT-S/4", 8},
                                                   {"DiT-XL/2", 8}};
  for (const auto& [name, batch] : cases) {
    const Blocks blocks = blocks_of(write_step(named_config(name), step_spec(batch), cpu_device()));
    const Packing made = pack(blocks);
    expect_valid(blocks, made);
    EXPECT_LE(made.peak, liveness_bound(blocks) * 1.001) << name << " at batch " << batch;
  }
}

TEST(Packing, PassesOverBlocksWithoutSizeOrLife) {
  const Blocks blocks = {{0, {0, 9}}, {64, {3, 3}}, {64, {5, 2}}, {128, {1, 2}}, {0, {4, 4}}};
  const Packing made = pack(blocks);
  expect_valid(blocks, made);
  EXPECT_EQ(made.peak, 128);
  EXPECT_EQ(pack({}).peak, 0);
  EXPECT_EQ(liveness_bound({}), 0);
  EXPECT_EQ(pack({{64, {}}}).peak, 0);
}

TEST(Packing, AlignsUpwardsToSixtyFour) {
  EXPECT_EQ(Limits{}.aligned(0), 0);
  EXPECT_EQ(Limits{}.aligned(1), 64);
  EXPECT_EQ(Limits{}.aligned(64), 64);
  EXPECT_EQ(Limits{}.aligned(65), 128);
  EXPECT_EQ(Limits{}.aligned((int64_t{1} << 40) + 1), (int64_t{1} << 40) + 64);
  std::mt19937_64 random(8);
  for (int i = 0; i < 100; ++i) {
    const Blocks blocks = random_blocks(random, 40, 12, 9);
    for (const int64_t offset : pack(blocks).offsets) EXPECT_EQ(offset % Limits{}.alignment, 0);
  }
}

}  // namespace
}  // namespace ebb
