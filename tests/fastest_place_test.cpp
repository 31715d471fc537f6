// The layout of a run over ranks, where nobody has said it.
#include "plan/fastest_place.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "model_fixture.h"

namespace ebb {
namespace {

constexpr int kRanks = 4;

// One block, which no stages can share, and large beside all else.
RunSpec spec_of(const RankPlace& place, int64_t budget) {
  RunSpec spec;
  spec.name = "one block";
  spec.config.width = 512;
  spec.config.patch = 8;
  spec.config.classes = 0;
  set_blocks(spec.config, 1, 8);
  spec.step.batch = kRanks;
  spec.step.place = place;
  spec.budget_bytes = budget;
  return spec;
}

RankPlace with_parts(int data, int parts) {
  RankPlace place{data};
  place.tensor = parts;
  return place;
}

// Where the run goes, and how often layouts with so many parts were planned on the way.
struct Found {
  RankPlace place;
  std::map<int, int> planned;
};
Found found(int64_t budget, const std::function<void(RunSpec&)>& change = {}) {
  Found found;
  found.place = fastest_place(
      {kRanks},
      [&](const RankPlace& place) {
        ++found.planned[place.tensor];
        RunSpec spec = spec_of(place, budget);
        if (change) change(spec);
        return spec;
      },
      middling_machine());
  return found;
}

int64_t floor_at(const RankPlace& place) { return floor_of(spec_of(place, 1), middling_machine()); }

TEST(FastestPlace, PartsOfBlocksAreTakenWhereNothingElseFits) {
  const int64_t groups = floor_at({kRanks}), halves = floor_at(with_parts(2, 2)),
                quarters = floor_at(with_parts(1, 4));
  ASSERT_LT(halves, groups - 1);
  const Found ample = found(int64_t{1} << 40);
  EXPECT_EQ(ample.place.tensor, 1);
  EXPECT_EQ(ample.planned.count(2), 0u) << "nobody has to wait for plans that are not needed";
  EXPECT_EQ(found(groups).place.tensor, 1);
  const int64_t between = (halves + groups) / 2;
  const Found less = found(between);
  EXPECT_EQ(less.place.tensor, 2);
  EXPECT_EQ(less.place.data, 2);
  EXPECT_EQ(less.planned.count(4), 0u) << "more parts send more";
  const PlannedRun made = plan_run(spec_of(less.place, between), middling_machine());
  EXPECT_TRUE(made.fits);
  bool said = false;
  for (const TechniqueUse& use : techniques_in_use(spec_of({}, 1).config, made.step)) {
    said |= use.name == "parts of blocks" && use.kind == "rounding";
  }
  EXPECT_TRUE(said);
  ASSERT_LT(quarters, halves);
  EXPECT_EQ(found(quarters).place.tensor, 4);
}

// What takes least then is what a refusal speaks of, by name.
TEST(FastestPlace, WhereNothingFitsItIsTheSmallest) {
  const RankPlace place = found(1).place;
  EXPECT_EQ(place.tensor, 4);
  try {
    plan_fitting_run(spec_of(place, 1), middling_machine());
    ADD_FAILURE() << "not refused";
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("--ranks tensor=4"), std::string::npos) << what;
    EXPECT_NE(what.find("at least " + format_size(floor_at(place))), std::string::npos) << what;
  }
}

// A decision that contradicts parts rules them out, and only them.
TEST(FastestPlace, WhatContradictsPartsRulesThemOut) {
  const auto coded = [](RunSpec& spec) { spec.decisions.exchange = parse_exchange("int8"); };
  EXPECT_EQ(found(1, coded).place.tensor, 1);
  const auto heads = [](RunSpec& spec) { set_blocks(spec.config, 1, 2); };
  EXPECT_EQ(found(1, heads).place.tensor, 2);
}

}  // namespace
}  // namespace ebb
