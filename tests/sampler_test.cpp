// Samplers against trajectories that others computed, guidance, and what a sample depends on.
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/diffusion_tables.h"
#include "model_fixture.h"
#include "sampler_fixture.h"

namespace ebb {
namespace {

// ---- the golden trajectories
// ---------------------------------------------------------------------

double relative_error(const Column& found, const Column& wanted) {
  double off = 0, size = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    off += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  return std::sqrt(off / size);
}

// The whole sampler program with its schedule; every x on the way.
void expect_golden(SamplerKind kind, int steps) {
  const OneThread one_thread;
  const bool diffusion = kind == SamplerKind::ddpm || kind == SamplerKind::ddim;
  const DitConfig config = six_channels(diffusion ? Objective::ddpm : Objective::flow);
  const KnownNetwork device(diffusion);
  SamplerSpec spec;
  spec.kind = kind;
  spec.steps = steps;
  Rig machine({sampler_programs(config, spec, device)[1]}, Executor::Mode::normal, device);
  machine.set_weights(config);
  const std::string name = sampler_name(kind);
  const Column wanted = golden(name + ".xs");
  ASSERT_EQ(wanted.size(), static_cast<size_t>(steps) * kValues);
  const std::vector<Scalars> schedule = sampler_schedule(spec);
  ASSERT_EQ(schedule.size(), static_cast<size_t>(steps));
  Column x = golden(name + ".x_T");
  for (int k = 0; k < steps; ++k) {
    device.at_step(k);
    machine.set(kSampleX, x);
    machine.executor().run(schedule[k]);
    x = machine.get(kSampleNext);
    const Column row(wanted.begin() + k * kValues, wanted.begin() + (k + 1) * kValues);
    EXPECT_LE(relative_error(x, row), 1e-5) << name << " step " << k;
  }
}

TEST(GoldenSampler, Ddpm) { expect_golden(SamplerKind::ddpm, 10); }
TEST(GoldenSampler, Ddim) { expect_golden(SamplerKind::ddim, 10); }
TEST(GoldenSampler, Euler) { expect_golden(SamplerKind::euler, 8); }
TEST(GoldenSampler, Heun) { expect_golden(SamplerKind::heun, 8); }

TEST(GoldenSampler, RespacedStepsAndTheirBetas) {
  for (const int k : {10, 50, 250}) {
    const std::vector<int> found = respaced_steps(k);
    EXPECT_EQ(Column(found.begin(), found.end()), golden("respaced." + std::to_string(k)));
  }
  // c[6] of a ddpm step is the logarithm of its respaced beta; the last step has no noise.
  SamplerSpec spec;
  spec.kind = SamplerKind::ddpm;
  spec.steps = 10;
  const Column betas = golden("respaced_beta.10");
  const std::vector<Scalars> schedule = sampler_schedule(spec);
  for (int i = 1; i < 10; ++i) {
    EXPECT_NEAR(schedule[9 - i].coef[6] / std::log(betas[i]), 1, 1e-6) << i;
    EXPECT_EQ(schedule[9 - i].time[0], respaced_steps(10)[i]);
  }
  EXPECT_EQ(std::exp(0.5f * schedule[9].coef[5]), 0);
  EXPECT_EQ(std::exp(0.5f * schedule[9].coef[6]), 0);
}

TEST(GoldenSampler, TablesAtTheGoldenSteps) {
  const DiffusionTables& t = diffusion_tables();
  const std::pair<const char*, const DiffusionTables::Table*> tables[] = {
      {"beta", &t.betas},
      {"alpha_bar", &t.alphas_cumprod},
      {"posterior_variance", &t.posterior_variance},
      {"log_posterior_variance", &t.posterior_log_variance_clipped},
      {"log_beta", &t.log_beta},
      {"mean_coef_x0", &t.posterior_mean_coef1},
      {"mean_coef_xt", &t.posterior_mean_coef2}};
  const Column at = golden("at");
  for (const auto& [name, table] : tables) {
    const Column wanted = golden(name);
    for (size_t i = 0; i < at.size(); ++i) {
      EXPECT_NEAR((*table)[static_cast<int>(at[i])], wanted[i], 1e-12 * std::abs(wanted[i]) + 1e-15)
          << name << " at " << at[i];
    }
  }
}

// ---- schedules of any length
// ---------------------------------------------------------------------

TEST(Schedule, EndsWithoutNoiseWhateverTheNumberOfSteps) {
  for (const SamplerKind kind : {SamplerKind::ddpm, SamplerKind::ddim}) {
    for (const int steps : {1, 2, 3, 7, 250, 1000}) {
      SamplerSpec spec;
      spec.kind = kind;
      spec.steps = steps;
      const std::vector<Scalars> schedule = sampler_schedule(spec);
      ASSERT_EQ(schedule.size(), static_cast<size_t>(steps));
      EXPECT_EQ(schedule[0].time[0], 999);
      // The last step returns the predicted clean image itself.
      const auto& last = schedule.back().coef;
      EXPECT_NEAR(last[2], 1, 1e-6);
      EXPECT_EQ(last[3], 0);
      EXPECT_EQ(last[4], 0);
      for (const Scalars& s : schedule) {
        for (const float c : s.coef) EXPECT_TRUE(std::isfinite(c));
      }
    }
  }
}

TEST(Schedule, FlowStepsAddUpToTheWholeWay) {
  for (const int steps : {1, 3, 8, 50}) {
    SamplerSpec spec;
    spec.kind = SamplerKind::heun;
    spec.steps = steps;
    double way = 0;
    float previous = 1;
    for (const Scalars& s : sampler_schedule(spec)) {
      EXPECT_EQ(s.time[0], previous);
      EXPECT_FLOAT_EQ(s.coef[1] + s.coef[2], s.coef[0]);
      way += s.coef[0];
      previous = s.time[1];
    }
    EXPECT_EQ(previous, 0);
    EXPECT_NEAR(way, -1, 1e-6);
  }
}

// ---- guidance
// ------------------------------------------------------------------------------------

DitConfig four_channels() {
  DitConfig c = small_config(Objective::flow);
  c.channels = 4;
  c.learn_sigma = true;  // the extra channels must not matter
  return c;
}

// One Euler step of a batch of two.
Column one_step(const SamplerSpec& base, const Column& labels, float guidance) {
  const OneThread one_thread;
  const DitConfig config = four_channels();
  SamplerSpec spec = base;
  spec.kind = SamplerKind::euler;
  spec.steps = 2;
  spec.batch = 2;
  spec.guidance = guidance;
  Rig machine({sampler_programs(config, spec, cpu_device())[1]});
  machine.set_weights(config);
  Random random(4);
  machine.set(kSampleX, random_column(2 * 4 * config.pixels(), random));
  machine.set(kSampleY, labels);
  machine.executor().run(sampler_schedule(spec)[0]);
  return machine.get(kSampleNext);
}

TEST(Guidance, IsTheLineThroughTwoUnguidedRuns) {
  const Column labels = {1, 3}, null = {5, 5};
  const Column c = one_step({}, labels, 1), u = one_step({}, null, 1);
  ASSERT_GT(relative_error(c, u), 1e-3);
  for (const float scale : {0.0f, 0.5f, 2.0f, 7.5f}) {
    const Column guided = one_step({}, labels, scale);
    Column wanted(c.size());
    for (size_t i = 0; i < c.size(); ++i) wanted[i] = u[i] + scale * (c[i] - u[i]);
    EXPECT_LE(relative_error(guided, wanted), 5e-6) << scale;
  }
}

TEST(Guidance, TheQuirkTouchesOnlyTheFirstThreeChannels) {
  const Column labels = {1, 3};
  SamplerSpec quirk;
  quirk.guide_three_channels = true;
  const Column three = one_step(quirk, labels, 4), all = one_step({}, labels, 4);
  const Column unguided = one_step({}, labels, 1);
  const size_t pixels = four_channels().pixels();
  for (size_t i = 0; i < all.size(); ++i) {
    if (i / pixels % 4 < 3) {
      ASSERT_EQ(three[i], all[i]) << "channel " << i / pixels % 4;
    } else {
      ASSERT_NEAR(three[i], unguided[i], 1e-5) << "channel 3";
    }
  }
  EXPECT_NE(three, all);
}

TEST(Guidance, TheNullLabelIsTheNumberOfClasses) {
  SamplerSpec spec;
  spec.guidance = 2;
  const Program p = sampler_programs(small_config(Objective::flow), spec, cpu_device())[1];
  for (const Op& op : p.ops) {
    if (const auto* labels = std::get_if<LabelsAndNull>(&op.params)) {
      EXPECT_EQ(labels->null_label, 5);
    }
    if (const auto* guide = std::get_if<Guide>(&op.params)) {
      EXPECT_EQ(guide->guided, 3);
    }
  }
}

// ---- what a sample depends on
// --------------------------------------------------------------------

Column draw(const std::vector<int32_t>& labels, int64_t batch, uint64_t seed,
            SamplerKind kind = SamplerKind::ddpm, DType activation = DType::f32,
            int64_t width = 16) {
  const OneThread one_thread;
  const bool flow = kind == SamplerKind::euler || kind == SamplerKind::heun;
  DitConfig config = small_config(flow ? Objective::flow : Objective::ddpm);
  config.width = width;
  set_blocks(config, 2, 2);
  SamplerSpec spec;
  spec.storage.activation = activation;
  spec.kind = kind;
  spec.batch = batch;
  spec.steps = 4;
  spec.guidance = 1.5f;
  Rig machine(sampler_programs(config, spec, cpu_device()));
  machine.set_weights(config, 1);
  Drawer drawer(machine.plans(), spec, config, cpu_device(), machine.memory());
  const int64_t size = config.channels * config.pixels();
  Column all(labels.size() * size, NAN);
  int64_t wanted = 0;
  const auto label_of = [&](int64_t place) { return labels[place]; };
  const auto drawn = static_cast<int64_t>(labels.size());
  drawer.draw(drawn, label_of, seed, [&](int64_t first, int64_t count, const float* values) {
    EXPECT_EQ(first, wanted);
    wanted += count;
    std::copy_n(values, count * size, all.begin() + first * size);
  });
  EXPECT_EQ(wanted, static_cast<int64_t>(labels.size()));
  return all;
}

Column sample(const Column& all, int64_t index) {
  const int64_t size = 3 * 64;
  return {all.begin() + index * size, all.begin() + (index + 1) * size};
}

TEST(Draw, GivesTheSameBitsForTheSameSeedAndOthersForAnother) {
  for (const SamplerKind kind :
       {SamplerKind::ddpm, SamplerKind::ddim, SamplerKind::euler, SamplerKind::heun}) {
    const Column first = draw({0, 1, 2, 3, 4}, 2, 9, kind);
    EXPECT_EQ(first, draw({0, 1, 2, 3, 4}, 2, 9, kind));
    EXPECT_NE(first, draw({0, 1, 2, 3, 4}, 2, 10, kind));
    for (const double x : first) ASSERT_TRUE(std::isfinite(x));
  }
}

// A sample is a function of the seed, its place and its label: not of its neighbours' labels, nor
// of how many are drawn.
TEST(Draw, ASampleDoesNotDependOnItsNeighbours) {
  const Column five = draw({0, 1, 2, 3, 4}, 2, 9);
  const Column three = draw({0, 1, 2}, 2, 9);
  const Column others = draw({4, 1, 0, 3, 1}, 2, 9);
  for (const int64_t i : {0, 1, 2}) EXPECT_EQ(sample(five, i), sample(three, i)) << i;
  for (const int64_t i : {1, 3}) EXPECT_EQ(sample(five, i), sample(others, i)) << i;
  for (const int64_t i : {0, 2, 4}) EXPECT_NE(sample(five, i), sample(others, i)) << i;
  const Column one = draw({0, 1, 4, 3, 4}, 2, 9);
  for (const int64_t i : {0, 1, 3, 4}) EXPECT_EQ(sample(five, i), sample(one, i)) << i;
  EXPECT_NE(sample(five, 2), sample(one, 2));
}

// Nor on how many are drawn together: ranks, and plans of other sizes, draw the same.
TEST(Draw, AnotherBatchSizeChangesNoBit) {
  const auto same = [](SamplerKind kind, DType activation, int64_t width) {
    const Column two = draw({0, 1, 2, 3, 4}, 2, 9, kind, activation, width);
    for (const int64_t batch : {1, 3, 5}) {
      EXPECT_EQ(draw({0, 1, 2, 3, 4}, batch, 9, kind, activation, width), two) << batch;
    }
  };
  for (const DType activation : {DType::f32, DType::bf16}) {
    same(SamplerKind::ddpm, activation, 16);
    same(SamplerKind::heun, activation, 16);
    same(SamplerKind::euler, activation, 96);
  }
}

TEST(Draw, NoTwoPlacesShareTheirNoise) {
  const Column same = draw({1, 1, 1, 1, 1, 1}, 2, 9);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t k = 0; k < i; ++k) EXPECT_NE(sample(same, i), sample(same, k)) << i << " " << k;
  }
}

TEST(SamplerSpec, RefusesWhatDoesNotFitTheModel) {
  const auto refused = [](Objective objective, int64_t classes, const SamplerSpec& spec) {
    DitConfig config = small_config(objective);
    config.classes = classes;
    EXPECT_THROW(validate(spec, config), Error);
  };
  SamplerSpec spec;
  spec.kind = SamplerKind::euler;
  refused(Objective::ddpm, 5, spec);
  spec.kind = SamplerKind::ddim;
  refused(Objective::flow, 5, spec);
  spec.guidance = 2;
  refused(Objective::ddpm, 0, spec);
  spec.guidance = 1;
  validate(spec, small_config());
  spec.steps = 0;
  refused(Objective::ddpm, 5, spec);
  spec.steps = 1001;
  refused(Objective::ddpm, 5, spec);
  EXPECT_THROW(parse_sampler("dpm"), Error);
}

}  // namespace
}  // namespace ebb
