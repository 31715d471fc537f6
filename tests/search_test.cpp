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
  const CostModel costs;
  for (const SearchCase& c : search_cases()) {
    SCOPED_TRACE(c.name);
    StepSpec spec = spec_of(c);
    const auto front = step_candidates(c.config, spec, {}, costs, cpu_device());
    ASSERT_GE(front.size(), 3u);
    for (size_t i = 0; i < front.size(); i += std::max<size_t>(1, front.size() / 8)) {
      spec.choices = front[i].choices;
      const PlanSet set = make_plans({write_step(c.config, spec, cpu_device())});
      const int64_t bound = set.plans[0].bytes - set.plans[0].ledger.gap;
      EXPECT_NEAR(static_cast<double>(front[i].bytes), static_cast<double>(bound),
                  0.01 * static_cast<double>(bound))
          << i << " of " << front.size();
      EXPECT_NEAR(front[i].seconds, predicted_seconds(set.plans[0].program, costs),
                  1e-2 * front[i].seconds);
    }
  }
}

}  // namespace
}  // namespace ebb
