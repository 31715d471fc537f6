// A half of a block whose gate is zero does nothing: without it, every bit that is left stays.
#include <gtest/gtest.h>

#include "step_runs.h"

namespace ebb {
namespace {

constexpr int64_t kBatch = 3;

struct Half {
  const char* name;
  bool attention;  // is missing
};

class HalfBlocks : public testing::TestWithParam<Half> {
 protected:
  HalfBlocks() : parent_(small_config(Objective::ddpm)), child_(parent_) {
    parent_.qk_norm = child_.qk_norm = QkNormKind::rms;
    for (DitConfig* config : {&parent_, &child_}) set_blocks(*config, 3, 2);
    (GetParam().attention ? child_.blocks[1].heads : child_.blocks[1].mlp) = 0;
  }

  // Rows of the middle block's modulation: chunks first .. first + 2 are of the missing half.
  int64_t missing_chunk() const { return GetParam().attention ? 0 : 3; }

  Column parent_weights(const ParamSpec& spec) const {
    Column weights = random_weights(spec, parent_);
    if (!spec.name.starts_with("blocks.1.adaLN")) return weights;
    const int64_t row = std::ssize(weights) / 6;  // of a chunk: D rows, or D numbers of the bias
    const int64_t gate = missing_chunk() + 2;
    std::fill_n(weights.begin() + gate * row, row, 0.0);
    return weights;
  }

  // What is left of a parent's tensor.
  Column left_of(const std::string& name, Column values) const {
    if (!name.ends_with("adaLN_modulation.1.weight") && !name.ends_with("adaLN_modulation.1.bias"))
      return values;
    if (name.find("blocks.1.") == std::string::npos) return values;
    const int64_t row = std::ssize(values) / 6;
    values.erase(values.begin() + missing_chunk() * row,
                 values.begin() + (missing_chunk() + 3) * row);
    return values;
  }

  // Every output of `ebb grad`: loss, output, gradients.
  std::map<std::string, Column> run(const DitConfig& config, bool parent) const {
    StepSpec spec = step_spec(kBatch, false);
    Rig rig({write_step(config, spec, cpu_device())});
    for (const ParamSpec& p : parameters(config)) {
      const auto all = parameters(parent_);
      const auto own = std::find_if(all.begin(), all.end(),
                                    [&](const ParamSpec& each) { return each.name == p.name; });
      const Column weights = parent_weights(*own);
      rig.set(p.name, parent ? weights : left_of(p.name, weights));
    }
    rig.set_batch(config, kBatch);
    rig.executor().run(training_scalars(0));
    std::map<std::string, Column> found;
    for (const Buf b : rig.plan().program.outputs) {
      const std::string& name = rig.plan().program.buffer(b).name;
      found[name] = rig.get(name);
    }
    return found;
  }

  DitConfig parent_, child_;
};

TEST_P(HalfBlocks, HaveTheBitsOfABlockWhoseGateIsZero) {
  const OneThread one_thread;
  const auto whole = run(parent_, true), half = run(child_, false);
  ASSERT_LT(half.size(), whole.size()) << "nothing is missing";
  for (const auto& [name, values] : half) {
    ASSERT_TRUE(whole.count(name)) << name;
    EXPECT_EQ(values, left_of(name, whole.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Either, HalfBlocks,
                         testing::Values(Half{"without heads", true}, Half{"without MLP", false}),
                         [](const auto& tested) {
                           return std::string(tested.param.attention ? "NoHeads" : "NoMlp");
                         });

}  // namespace
}  // namespace ebb
