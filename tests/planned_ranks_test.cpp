// Plans of all ranks of a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "model_fixture.h"
#include "plan/planned_run.h"
#include "plan/profile.h"
#include "plan/staged.h"

namespace ebb {
namespace {

RunSpec spec_of(int data, int pipe, int rank, int64_t budget, int tensor = 1) {
  RunSpec spec;
  spec.name = "DiT-S/2";
  spec.config = named_config("DiT-S/2");
  spec.step.batch = 16;
  spec.step.clip = 1;
  spec.step.place = {data, pipe, rank};
  spec.step.place.tensor = tensor;
  spec.budget_bytes = budget;
  return spec;
}

TEST(PlannedRanks, EveryRankComesToTheSamePlanOfAll) {
  const Machine machine = middling_machine();
  for (const auto& [data, pipe, tensor] :
       {std::tuple{3, 1, 1}, std::tuple{1, 3, 1}, std::tuple{1, 1, 3}}) {
    std::vector<RankBytes> all;
    for (int r = 0; r < 3; ++r) {
      const PlannedRun made = plan_run(spec_of(data, pipe, r, 700'000'000, tensor), machine);
      EXPECT_TRUE(made.fits);
      ASSERT_EQ(made.ranks.size(), 3u);
      EXPECT_EQ(made.ranks[r].arena_bytes, made.plans.arena_bytes);
      EXPECT_EQ(made.ranks[r].process_bytes, made.process_bytes());
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].arena_bytes, made.ranks[i].arena_bytes);
        EXPECT_EQ(all[i].sent_bytes, made.ranks[i].sent_bytes);
      }
      all = made.ranks;
    }
  }
}

TEST(PlannedRanks, ALargerBudgetIsNotSlowerAndASmallerOneIsObeyed) {
  const Machine machine = middling_machine();
  for (const auto& [data, pipe, tensor] :
       {std::tuple{2, 1, 1}, std::tuple{1, 4, 1}, std::tuple{1, 1, 2}}) {
    const auto spec_with = [&, d = data, p = pipe, t = tensor](int64_t budget) {
      return spec_of(d, p, 0, budget, t);
    };
    const int64_t floor = plan_run_and_floor(spec_with(1), machine).floor_bytes;
    double slower = std::numeric_limits<double>::infinity();
    for (const double times : {1.0, 1.2, 1.6, 3.0}) {
      const auto budget = static_cast<int64_t>(static_cast<double>(floor) * times);
      const PlannedRun made = plan_run(spec_with(budget), machine);
      EXPECT_TRUE(made.fits) << data << " x " << pipe << " at " << times;
      EXPECT_LE(made.most_bytes(), budget);
      EXPECT_LE(made.seconds, slower * 1.01) << data << " x " << pipe;
      slower = made.seconds;
    }
    EXPECT_FALSE(plan_run(spec_with(floor - 1), machine).fits);
  }
}

// What codes have not sent goes to a disk where a budget asks for it, and not before: by itself, or
// with the rest of the state.
TEST(PlannedRanks, RestsGoToADiskOnlyWhereABudgetNeedsThat) {
  const Machine here = middling_machine(), machine = with_disk(here);
  RunSpec spec = spec_of(2, 1, 0, int64_t{8} << 30);
  spec.config.width = 256;
  spec.config.patch = 8;
  spec.config.classes = 0;
  set_blocks(spec.config, 8, 4);
  spec.step.batch = 2;
  spec.decisions.exchange = parse_exchange("topk:0.01");
  spec.decisions.shard = Shard::grads;
  const auto planned = [&](int64_t budget) {
    spec.budget_bytes = budget;
    PlannedRun made = plan_run(spec, machine);
    EXPECT_TRUE(made.fits);
    EXPECT_LE(made.most_bytes(), budget);
    return made.step.choices.offload;
  };
  EXPECT_FALSE(planned(int64_t{8} << 30).any());
  const int64_t in_memory = floor_of(spec, here), least = floor_of(spec, machine);
  const int64_t rests = 4 * parameter_count(spec.config);
  EXPECT_LT(least, in_memory - rests);
  const Offload some = planned(in_memory - rests / 4);
  EXPECT_TRUE(some.rests != some.state) << "either is enough";
  const Offload all = planned(least);
  EXPECT_TRUE(all.rests && all.state);
  // A refusal in memory says what a disk would need, under this code too.
  RunSpec free = spec;
  free.decisions.shard = std::nullopt;
  Machine nominal = here;
  nominal.lanes.push_back(nominal_disk());
  const std::string wanted = "--offload DIR would need " + format_size(floor_of(free, nominal));
  spec.budget_bytes = in_memory - rests / 4;
  try {
    plan_fitting_run(spec, here);
    ADD_FAILURE() << "not refused";
  } catch (const Error& e) {
    EXPECT_NE(e.hint().find(wanted), std::string::npos) << e.hint() << "; " << wanted;
  }
  spec.decisions.exchange = parse_exchange("int8");
  EXPECT_FALSE(planned(floor_of(spec, machine)).rests) << "nothing is kept of it";
}

// Tokens of parts are cut where a budget needs it, or where less work at the norms is worth what is
// sent besides; never against the user's word.
TEST(PlannedRanks, TokensAreCutWhereItSavesWhatIsWanted) {
  Machine machine = middling_machine();
  RunSpec spec = spec_of(1, 1, 0, 0, 2);
  spec.decisions.micro_batch = 16;
  spec.decisions.keep = KeepSet::all();
  const auto planned = [&](double bytes_per_second, int64_t budget, std::optional<bool> word) {
    machine.link = {bytes_per_second, 1e-6};
    spec.budget_bytes = budget;
    spec.decisions.cut_tokens = word;
    return plan_run(spec, machine);
  };
  constexpr double kSlow = 1e7, kFast = 1e12;
  constexpr int64_t kPlenty = int64_t{1} << 40;
  const PlannedRun whole = planned(kSlow, kPlenty, {});
  EXPECT_FALSE(whole.step.choices.cut_tokens);
  EXPECT_TRUE(planned(kFast, kPlenty, {}).step.choices.cut_tokens);
  const PlannedRun cut = planned(kSlow, whole.most_bytes() - 1, {});
  EXPECT_TRUE(cut.fits && cut.step.choices.cut_tokens);
  EXPECT_LT(cut.most_bytes(), 0.9 * static_cast<double>(whole.most_bytes()));
  EXPECT_FALSE(planned(kSlow, whole.most_bytes() - 1, false).fits);
  EXPECT_TRUE(planned(kSlow, kPlenty, true).step.choices.cut_tokens);
  EXPECT_FALSE(planned(kFast, kPlenty, false).step.choices.cut_tokens);
}

// What a product takes is gathered again only where the link is fast.
TEST(PlannedRanks, WhatIsMadeAgainOfCutTokensIsAMatterOfTheLink) {
  Machine machine = middling_machine();
  const auto dropped_first = [&](double bytes_per_second) {
    machine.link = {bytes_per_second, 1e-6};
    Choices way;
    way.cut_tokens = true;
    const auto options = keep_options(named_config("DiT-S/2"), 8, way, machine, 2);
    const auto place_of = [&](Slot slot) {
      return std::find_if(options.begin(), options.end(),
                          [&](const KeepSet& keep) { return !keep.has(slot); }) -
             options.begin();
    };
    return place_of(Slot::m1) < place_of(Slot::u);
  };
  EXPECT_TRUE(dropped_first(1e12));
  EXPECT_FALSE(dropped_first(1e7));
}

// A batch of fewer samples than leaves, or fewer blocks than stages, is none; and it is the fullest
// rank that says how much is needed.
TEST(PlannedRanks, ARefusalNamesWhatTheLayoutCanDoAndItsFullestRankNeeds) {
  const Machine machine = middling_machine();
  const auto refused = [&](RunSpec spec) -> std::string {
    spec.config = small_config();
    set_blocks(spec.config, spec.step.place.pipe, 2);
    const int64_t floor = plan_run_and_floor(spec, machine).floor_bytes;
    try {
      plan_fitting_run(spec, machine);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::budget);
      EXPECT_NE(std::string(e.what()).find("at least " + format_size(floor)), std::string::npos)
          << e.what();
      return e.hint();
    }
    return "not refused";
  };
  RunSpec tree = spec_of(2, 1, 0, 1);
  tree.step.batch = 3;
  tree.step.leaves = 2;
  EXPECT_EQ(refused(tree).find("--batch 1 "), std::string::npos);
  RunSpec stages = spec_of(1, 2, 0, 1);
  stages.step.batch = 2;
  EXPECT_EQ(refused(stages).find("--depth 1 "), std::string::npos);
  const std::string parts = refused(spec_of(1, 1, 0, 1, 2));
  EXPECT_EQ(parts.find("bf16"), std::string::npos) << parts;
  EXPECT_EQ(parts.find("ebb prune"), std::string::npos) << parts;
}

// State of a rank over that of one, as ranks.md has it: 4P + 16P/n with gradients shared.
TEST(PlannedRanks, StateFallsWithTheNumberOfRanks) {
  const Machine machine = middling_machine();
  const auto floor = [&](int data, int pipe, int tensor = 1) {
    RunSpec spec = spec_of(data, pipe, 0, 1, tensor);
    spec.config = named_config("DiT-XL/2");
    return static_cast<double>(plan_run_and_floor(spec, machine).floor_bytes);
  };
  const auto params = static_cast<double>(parameter_count(named_config("DiT-XL/2")));
  EXPECT_LT(floor(8, 1), 0.33 * 20 * params);
  EXPECT_LT(floor(1, 4), 0.27 * 20 * params);
  EXPECT_LT(floor(1, 1, 4), 0.27 * 20 * params);
}

TEST(PlannedRanks, CutsLetNoStageWeighMoreThanItMust) {
  EXPECT_EQ(balanced_cuts({1, 1, 1, 1}, {}, 2), (std::vector<int64_t>{2}));
  EXPECT_EQ(balanced_cuts({1, 1, 1, 1}, {2, 0}, 2), (std::vector<int64_t>{1}));
  EXPECT_EQ(balanced_cuts({1, 1, 1, 1}, {0, 2}, 2), (std::vector<int64_t>{3}));
  EXPECT_EQ(balanced_cuts({5, 1, 1, 1, 1, 1}, {}, 2), (std::vector<int64_t>{1}));
  EXPECT_EQ(balanced_cuts({1, 1, 1}, {}, 3), (std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace ebb
