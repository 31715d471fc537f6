// The planner: what it estimates is what the program takes, and more memory is never slower.
#include <gtest/gtest.h>

#include "model_fixture.h"
#include "plan/search.h"

namespace ebb {
namespace {

struct SearchCase {
  const char* name;
  DitConfig config;
  int64_t batch;
  float clip;
};

std::vector<SearchCase> search_cases() {
  DitConfig latent = named_config("DiT-S/4");
  return {{"small", small_config(), 6, 0},
          {"uneven", uneven_config(Objective::ddpm), 5, 1},
          {"S/4", latent, 7, 0},
          {"S/4 clipped", latent, 8, 1},
          {"XL/8", named_config("DiT-XL/8"), 3, 0}};
}

StepSpec spec_of(const SearchCase& c) {
  StepSpec spec = step_spec(c.batch);
  spec.clip = c.clip;
  return spec;
}

TEST(Search, EstimatesTheBytesAndTheTimeOfTheProgram) {
  const OneThread one_thread;
  const Machine machine = middling_machine();
  for (const SearchCase& c : search_cases()) {
    SCOPED_TRACE(c.name);
    StepSpec spec = spec_of(c);
    const auto front = step_candidates(c.config, spec, {}, machine);
    ASSERT_GE(front.size(), 3u);
    for (size_t i = 0; i < front.size(); i += std::max<size_t>(1, front.size() / 8)) {
      spec.choices = front[i].choices;
      const PlanSet set = make_plans({write_step(c.config, spec, cpu_device())});
      const int64_t bound = set.plans[0].bytes - set.plans[0].ledger.gap;
      EXPECT_NEAR(static_cast<double>(front[i].bytes), static_cast<double>(bound),
                  0.01 * static_cast<double>(bound))
          << i << " of " << front.size();
      EXPECT_NEAR(front[i].seconds, predicted_seconds(set.plans[0].program, machine),
                  1e-2 * front[i].seconds);
      EXPECT_NEAR(static_cast<double>(front[i].own_bytes),
                  static_cast<double>(bookkeeping_bytes(set)),
                  0.05 * static_cast<double>(bookkeeping_bytes(set)) + 1e5)
          << i << " of " << front.size();
    }
  }
}

// More blocks than the search looks at one by one.
TEST(Search, DeepModelsArePlannedInGroupsOfBlocks) {
  const OneThread one_thread;
  const Machine machine = middling_machine();
  DitConfig deep = small_config();
  deep.image_size = 16 * deep.patch;
  set_blocks(deep, 230, 2);
  StepSpec spec = step_spec(4);
  const auto front = step_candidates(deep, spec, {}, machine);
  ASSERT_GE(front.size(), 10u);
  // Storing some blocks' inputs takes far less than keeping everything.
  EXPECT_LT(front.back().bytes, front.front().bytes / 3);
  for (const Candidate* candidate : {&front.front(), &front[front.size() / 2], &front.back()}) {
    spec.choices = candidate->choices;
    const PlanSet set = make_plans({write_step(deep, spec, cpu_device())});
    EXPECT_NEAR(static_cast<double>(candidate->bytes), static_cast<double>(set.arena_bytes),
                0.02 * static_cast<double>(set.arena_bytes));
  }
}

// Everything that the user can allow, so that all of it competes.
TEST(Search, ALargerBudgetIsSlowerOnlyForDoingWithoutReluctantTechniques) {
  const OneThread one_thread;
  Decisions forced;
  for (const AllowWord& word : allow_words()) forced.allowed.insert(word.word);
  int given_up = 0;
  for (const auto& [fetch, store] : {std::pair{1e9, 1e9}, {2e7, 1e7}, {1e11, 1e11}}) {
    const Machine machine = with_disk(middling_machine(), fetch, store);
    const auto front = step_candidates(named_config("DiT-S/4"), step_spec(8), forced, machine);
    ASSERT_GE(front.size(), 10u);
    for (size_t larger = 0; larger < front.size(); ++larger) {
      for (size_t smaller = larger + 1; smaller < front.size(); ++smaller) {
        EXPECT_LT(front[smaller].total_bytes(), front[larger].total_bytes());
        const int fewer =
            used_reluctantly(front[smaller].choices) - used_reluctantly(front[larger].choices);
        const double most = front[smaller].seconds * (1 + kReluctance * std::max(0, fewer));
        EXPECT_LE(front[larger].seconds, most * (1 + 1e-12)) << larger << " and " << smaller;
        if (front[larger].seconds > front[smaller].seconds) ++given_up;
      }
    }
  }
  EXPECT_GT(given_up, 0) << "the words about reluctance would have no reason";
}

}  // namespace
}  // namespace ebb
