// Weights that were pruned one by one: what is left is all that is kept, and what is not there is
// zero, bit for bit.
#include <gtest/gtest.h>

#include "plan/planned_run.h"
#include "step_runs.h"
#include "train/session.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 4;

DitConfig dense(DitConfig config) {
  for (const ParamSpec& spec : parameters(config)) {
    if (spec.prunable()) left_of(config, spec.left_at) = 0;
  }
  return config;
}

// Places that are left, of all of a tensor's.
std::vector<bool> places(const ParamSpec& spec) {
  std::vector<bool> there(static_cast<size_t>(element_count(spec.shape)), true);
  if (!spec.sparse()) return there;
  const Column mask = random_mask(spec);
  for (int64_t i = 0; i < std::ssize(there); ++i) {
    there[i] = is_left(mask.data(), spec.columns(), i / spec.columns(), i % spec.columns());
  }
  return there;
}

// Loss, output and gradients, as `ebb grad` gives them.
std::map<std::string, Column> outputs(Rig& rig, const DitConfig& config) {
  rig.set_batch(config, kBatch);
  Random random(11);
  rig.set(kBatchNoise, random_column(kBatch * config.channels * config.pixels(), random));
  rig.set(kBatchTime, random_times(kBatch, config.objective, random));
  rig.executor().run(training_scalars(0));
  std::map<std::string, Column> found;
  for (const Buf b : rig.plan().program.outputs) {
    const std::string& name = rig.plan().program.buffer(b).name;
    found[name] = rig.get(name);
  }
  return found;
}

TEST(SparseWeights, HaveTheGradientsOfZerosBitForBit) {
  const OneThread one_thread;
  for (const Objective objective : {Objective::ddpm, Objective::flow}) {
    const DitConfig config = sparse_config(objective), whole = dense(config);
    const StepSpec spec = step_spec(kBatch, false);
    Rig few({write_step(config, spec, cpu_device())});
    few.set_weights(config);
    Rig all({write_step(whole, spec, cpu_device())});
    for (const ParamSpec& p : parameters(config)) {
      const Column left = random_weights(p, config);
      const std::vector<bool> there = places(p);
      Column zeros(there.size());
      for (size_t i = 0, next = 0; i < there.size(); ++i) zeros[i] = there[i] ? left[next++] : 0;
      all.set(p.name, zeros);
    }
    const auto of_few = outputs(few, config), of_all = outputs(all, whole);
    EXPECT_EQ(of_few.at(kLoss), of_all.at(kLoss));
    EXPECT_EQ(of_few.at(kOutput), of_all.at(kOutput));
    for (const ParamSpec& p : parameters(config)) {
      if (!p.trained()) continue;
      const Column& gradient = of_all.at("grad." + p.name);
      const std::vector<bool> there = places(p);
      Column left;
      for (size_t i = 0; i < there.size(); ++i) {
        if (there[i]) left.push_back(gradient[i]);
      }
      EXPECT_EQ(of_few.at("grad." + p.name), left) << p.name;
    }
  }
}

TEST(SparseWeights, ExactTechniquesChangeNoBit) {
  const OneThread one_thread;
  const DitConfig config = sparse_config();
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::lion, Optimizer::adafactor}) {
    StepSpec spec = updating(0.05f, kBatch);
    spec.optimizer = optimizer;
    expect_exact_techniques(config, spec);
  }
}

// 4 bytes each for weight, gradient, two moments and average, and a bit in any case, with a word
// for each row of the mask; 20 bytes of biases and embeddings, which are whole.
TEST(SparseWeights, TakeTheBytesOfWhatIsLeft) {
  DitConfig config = named_config("DiT-S/2");
  for (const double density : {0.5, 0.1}) {
    set_density(config, density);
    StepSpec spec = updating(1, 2);
    const PlanSet plans = make_plans({write_step(config, spec, cpu_device())}, Limits{});
    double bytes = 0;
    for (const Buffer& b : plans.plans[0].program.buffers) {
      const bool of_state = b.purpose == Purpose::weight || b.purpose == Purpose::gradient ||
                            b.purpose == Purpose::moment || b.purpose == Purpose::ema;
      if (of_state) bytes += static_cast<double>(b.bytes());
    }
    double matrices = 0, rows = 0, others = 0;
    for (const ParamSpec& p : parameters(config)) {
      const auto count = static_cast<double>(element_count(p.shape));
      if (!p.prunable()) others += p.trained() ? count : count / 5;
      if (p.prunable()) matrices += count, rows += static_cast<double>(p.rows());
    }
    const double wanted = matrices * (20 * density + 0.125) + rows * 8 + others * 20;
    EXPECT_NEAR(bytes, wanted, 0.001 * bytes) << density;
  }
}

// A run that begins sparse has the starting weights of a whole one, those that lots have left.
TEST(SparseWeights, BeginWithTheWeightsOfAWholeModel) {
  const OneThread one_thread;
  const Machine machine = middling_machine();
  const auto started = [&](const DitConfig& config, auto look) {
    const RunSpec spec{"test", config, updating(1, 2), {}, {}, int64_t{1} << 40};
    const PlannedRun planned = plan_fitting_run(spec, machine);
    Session session(config, planned, machine);
    session.initialise(5);
    look(session.state());
  };
  const DitConfig config = sparse_config();
  std::map<std::string, std::vector<float>> whole;
  started(dense(config), [&](const State& state) {
    for (const StateTensor& t : state.tensors()) {
      whole[t.name].resize(t.count());
      state.read(t, 0, whole[t.name].data(), t.count());
    }
  });
  started(config, [&](const State& state) {
    for (const ParamSpec& spec : parameters(config)) {
      if (!spec.sparse()) continue;
      const StateTensor& tensor = state.at(spec.name);
      std::vector<uint8_t> bits(element_count(state.at(kMask + spec.name).shape));
      state.read_mask(state.at(kMask + spec.name), 0, bits.data(), std::ssize(bits));
      std::vector<float> left(tensor.count()), spread(element_count(spec.shape));
      state.read(tensor, 0, left.data(), tensor.count());
      state.spread(tensor, left.data(), 0, spread.data(), std::ssize(spread));
      int64_t count = 0;
      for (int64_t i = 0; i < std::ssize(spread); ++i) {
        const int64_t row = i / spec.columns(), column = i % spec.columns();
        const bool there =
            (bits[row * mask_bytes(spec.columns()) + column / 8] >> (column % 8) & 1) != 0;
        count += there ? 1 : 0;
        ASSERT_EQ(spread[i], there ? whole.at(spec.name)[i] : 0) << spec.name << " " << i;
      }
      EXPECT_EQ(count, spec.left) << spec.name;
    }
  });
}

}  // namespace
}  // namespace ebb
