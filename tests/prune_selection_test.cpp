// Amounts and scores become survivors.
#include <gtest/gtest.h>

#include <numeric>

#include "prune/selection.h"
#include "prune_fixture.h"

namespace ebb {
namespace {

// Structure i of a block has the score i + 1, but for the blocks' factor.
Scores rising(const DitConfig& config, const std::vector<double>& factors = {}) {
  Scores scores;
  for (size_t b = 0; b < config.blocks.size(); ++b) {
    const double factor = b < factors.size() ? factors[b] : 1;
    BlockScores block;
    for (int64_t i = 0; i < config.blocks[b].heads; ++i) block.heads.push_back(factor * (i + 1));
    for (int64_t i = 0; i < config.blocks[b].mlp; ++i) block.mlp.push_back(factor * (i + 1));
    block.block = factor;
    scores.blocks.push_back(block);
  }
  return scores;
}

Amount amount(const std::string& text) { return parse_amount(text, "--x"); }

std::vector<int64_t> from(int64_t first, int64_t end) {
  std::vector<int64_t> all(static_cast<size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
}

int code_of(const std::function<void()>& action, const std::string& noun) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(noun), std::string::npos) << e.what();
    return static_cast<int>(e.code());
  }
  return 0;
}

TEST(PruneAmount, IsAShareOrANumberAndNothingElse) {
  EXPECT_EQ(amount("0.25").of(16), 4);
  EXPECT_EQ(amount("1e-1").of(100), 10);
  EXPECT_EQ(amount("3").of(16), 3);
  // Python's round(): half to even.
  EXPECT_EQ(amount("0.5").of(5), 2);
  EXPECT_EQ(amount("0.5").of(7), 4);
  for (const char* bad : {"0", "-1", "1.0", "0.0", "-0.2", "1.5", "2.5", "nan", "inf", "", "half",
                          "50%", "99999999999999999999", "0x2", "1e9"}) {
    EXPECT_EQ(code_of([&] { amount(bad); }, "--x"), 2) << bad;
  }
}

TEST(PruneSelection, WithinBlocksTheLeastOfEachGo) {
  const DitConfig config = prunable_config(3, 4);  // MLPs of 128
  const Selection made =
      select(config, rising(config), {amount("0.25"), amount("64"), {}, Scope::block, 16});
  ASSERT_EQ(made.kept.size(), 3u);
  for (const Survivor& block : made.kept) {
    EXPECT_EQ(block.heads, from(1, 4));
    EXPECT_EQ(block.mlp, from(64, 128));
  }
  EXPECT_TRUE(made.notes.empty());
}

TEST(PruneSelection, WidthsAreRoundedUpToPanelsAndSaidSo) {
  const DitConfig config = prunable_config(2, 4);
  const Selection made = select(config, rising(config), {{}, amount("0.5"), {}, Scope::block, 48});
  EXPECT_EQ(made.kept[0].mlp, from(32, 128));  // 64 would stay: 96 do
  ASSERT_EQ(made.notes.size(), 1u);
  EXPECT_NE(made.notes[0].find("128 units would go, 64 do"), std::string::npos) << made.notes[0];
  EXPECT_NE(made.notes[0].find("multiples of 48"), std::string::npos) << made.notes[0];
  // A width that is no multiple is only left for one that is.
  const Selection all = select(config, rising(config), {{}, amount("1"), {}, Scope::block, 48});
  EXPECT_EQ(all.kept[0].mlp, from(0, 128));
}

TEST(PruneSelection, OverTheModelBlocksLoseUnevenly) {
  const DitConfig config = prunable_config(2, 4);
  // Not comparable: each block by its own mean, so that factors do not matter.
  Scores scores = rising(config, {1, 100});
  Selection made = select(config, scores, {amount("4"), {}, {}, Scope::model, 16});
  EXPECT_EQ(made.kept[0].heads, from(2, 4));
  EXPECT_EQ(made.kept[1].heads, from(2, 4));
  // Comparable: the second block is worth a hundred times as much.
  scores.comparable = true;
  made = select(config, scores, {amount("3"), amount("0.25"), {}, Scope::model, 16});
  EXPECT_EQ(made.kept[0].heads, from(3, 4));
  EXPECT_EQ(made.kept[1].heads, from(0, 4));
  EXPECT_EQ(made.kept[0].mlp, from(64, 128));
  EXPECT_EQ(made.kept[1].mlp, from(0, 128));
  // One head stays wherever the rest of the amount has to come from.
  made = select(config, scores, {amount("4"), {}, {}, Scope::model, 16});
  EXPECT_EQ(made.kept[0].heads, from(3, 4));
  EXPECT_EQ(made.kept[1].heads, from(1, 4));
}

TEST(PruneSelection, TheFirstAndTheLastBlockStay) {
  const DitConfig config = prunable_config(5, 4);
  const Scores scores = rising(config, {0.1, 3, 1, 2, 0.1});
  const Selection made = select(config, scores, {{}, {}, amount("2"), Scope::block, 16});
  ASSERT_EQ(made.kept.size(), 3u);
  EXPECT_EQ(made.kept[1].block, 1);
  const auto asks_for = [&](const char* blocks) {
    return code_of(
        [&] {
          select(config, scores, {{}, {}, amount(blocks), Scope::block, 16});
        },
        "--blocks");
  };
  EXPECT_EQ(asks_for("3"), 0);
  EXPECT_EQ(asks_for("4"), 2);
  EXPECT_EQ(asks_for("0.9"), 2);
}

TEST(PruneSelection, AllHeadsOfAllBlocksAreRefusedAndAllOfOneLeaveOne) {
  DitConfig config = prunable_config(2, 4);
  const auto asks_for = [&](const char* heads, const char* mlp, Scope scope) {
    return code_of(
        [&] {
          PruneRequest request{{}, {}, {}, scope, 16};
          if (*heads != '\0') request.heads = amount(heads);
          if (*mlp != '\0') request.mlp = amount(mlp);
          select(config, rising(config), request);
        },
        *heads != '\0' ? "--heads" : "--mlp");
  };
  for (const Scope scope : {Scope::block, Scope::model}) {
    EXPECT_EQ(asks_for("0.95", "", scope), 2);
    EXPECT_EQ(asks_for("8", "", scope), 2);
    EXPECT_EQ(asks_for("", "0.9999", scope), 2);
    EXPECT_EQ(asks_for("", "1000", scope), 2);
  }
  config.blocks[0].heads = 1;
  const Selection made = select(config, rising(config), {amount("0.7"), {}, {}, Scope::block, 16});
  EXPECT_EQ(made.kept[0].heads, from(0, 1));
  EXPECT_EQ(made.kept[1].heads, from(3, 4));
  EXPECT_EQ(made.notes.size(), 1u);
}

// What of everything is left when the first `count` of an order are gone.
Survivors after(const DitConfig& config, const std::vector<Removal>& order, size_t count) {
  std::vector<bool> gone(order.size());
  std::fill_n(gone.begin(), count, true);
  return without(all_of(config), order, gone);
}

TEST(PruneOrder, EndsWithOneHeadAndOnePanelInEveryBlock) {
  DitConfig config = prunable_config(3, 4);
  config.blocks[1] = {1, 20};
  for (const Scope scope : {Scope::block, Scope::model}) {
    const auto order = removal_order(config, all_of(config), rising(config), scope, 48);
    const DitConfig last = pruned_config(config, after(config, order, order.size()));
    EXPECT_EQ(last.blocks, (std::vector<BlockShape>{{1, 48}, {1, 20}, {1, 48}}));
    // Every width on the way is the block's own or a multiple.
    for (size_t count = 0; count <= order.size(); ++count) {
      for (const BlockShape& shape : pruned_config(config, after(config, order, count)).blocks) {
        EXPECT_TRUE(shape.mlp % 48 == 0 || shape.mlp == 128 || shape.mlp == 20) << shape.mlp;
      }
    }
  }
}

TEST(PruneOrder, WithinBlocksAllShrinkAlike) {
  const DitConfig config = prunable_config(4, 8, 64);
  const auto order =
      removal_order(config, all_of(config), rising(config, {1, 9, 2, 5}), Scope::block, 32);
  const DitConfig half = pruned_config(config, after(config, order, order.size() / 2));
  for (const BlockShape& shape : half.blocks) {
    EXPECT_NEAR(static_cast<double>(shape.heads), 4, 1);
    EXPECT_NEAR(static_cast<double>(shape.mlp), 128, 32);
  }
}

TEST(PruneTarget, RemovesAsLittleAsFits) {
  const DitConfig config = prunable_config(3, 4);
  constexpr int64_t kPanel = 4;  // a head is worth four of them: some can be put back
  const auto order =
      removal_order(config, all_of(config), rising(config, {1, 2, 3}), Scope::model, kPanel);
  const int64_t all = parameter_count(config);
  const int64_t least = parameter_count(pruned_config(config, after(config, order, order.size())));
  for (int64_t wanted = least; wanted < all; wanted += 577) {
    int asked = 0;
    const auto fits = [&](const Survivors& kept) {
      ++asked;
      return parameter_count(pruned_config(config, kept)) <= wanted;
    };
    const auto kept = remove_until(all_of(config), order, fits);
    ASSERT_TRUE(kept);
    const DitConfig pruned = pruned_config(config, *kept);
    const int64_t params = parameter_count(pruned);
    EXPECT_LE(params, wanted);
    EXPECT_LT(asked, 20);
    // Not one structure more.
    for (const Structure kind : kStructures) {
      bool any_gone = false;
      for (size_t b = 0; b < pruned.blocks.size(); ++b) {
        any_gone |=
            structure_count(pruned.blocks[b], kind) < structure_count(config.blocks[b], kind);
      }
      const int64_t one = structure_params(config, kind) * (kind == Structure::mlp ? kPanel : 1);
      if (!any_gone) continue;
      EXPECT_GT(params + one, wanted) << structure_name(kind);
    }
  }
}

TEST(PruneTarget, WhatFitsAlreadyStaysAndWhatCannotFitIsNothing) {
  const DitConfig config = prunable_config(2, 4);
  const auto order = removal_order(config, all_of(config), rising(config), Scope::block, 16);
  EXPECT_EQ(remove_until(all_of(config), order, [](const Survivors&) { return true; }),
            all_of(config));
  EXPECT_EQ(remove_until(all_of(config), order, [](const Survivors&) { return false; }),
            std::nullopt);
}

TEST(PruneRandom, IsAFunctionOfTheSeedAndTheFirstParentsNumbers) {
  const DitConfig config = prunable_config(3, 4);
  const Scores a = random_scores(config, {}, 5), b = random_scores(config, {}, 5);
  const Scores other = random_scores(config, {}, 6);
  EXPECT_EQ(a.blocks[1].mlp, b.blocks[1].mlp);
  EXPECT_NE(a.blocks[1].mlp, other.blocks[1].mlp);
  EXPECT_NE(a.blocks[0].mlp, a.blocks[1].mlp);
  // The same structures have the same scores in what is left of the model.
  const Survivors kept = {{0, {1, 2}, {5, 6, 9}}, {2, {0}, {127}}};
  const DitConfig pruned = pruned_config(config, kept);
  const Scores rest = random_scores(pruned, in_first_parent(kept, {}), 5);
  EXPECT_EQ(rest.blocks[0].heads, (std::vector{a.blocks[0].heads[1], a.blocks[0].heads[2]}));
  EXPECT_EQ(rest.blocks[1].mlp, std::vector{a.blocks[2].mlp[127]});
  EXPECT_EQ(rest.blocks[1].block, a.blocks[2].block);
}

}  // namespace
}  // namespace ebb
