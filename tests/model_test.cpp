// The model: its sizes against the paper's, its starting values, and its gradient as a whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <set>

#include "model_fixture.h"
#include "reference_executor.h"

namespace ebb {
namespace {

// ---- sizes
// ---------------------------------------------------------------------------------------

struct Published {
  const char* name;
  int64_t parameters;
  double gmacs;  // of one 256 x 256 image, forward
};

constexpr Published kPublished[] = {
    {"DiT-S/2", 32'963'360, 6.06},    {"DiT-S/4", 32'945'024, 1.41},
    {"DiT-S/8", 33'148'160, 0.36},    {"DiT-B/2", 130'512'416, 23.01},
    {"DiT-B/4", 130'475'648, 5.57},   {"DiT-B/8", 130'881'536, 1.42},
    {"DiT-L/2", 458'102'816, 80.70},  {"DiT-L/4", 458'053'760, 19.70},
    {"DiT-L/8", 458'594'816, 5.01},   {"DiT-XL/2", 675'129'632, 118.62},
    {"DiT-XL/4", 675'074'432, 29.04}, {"DiT-XL/8", 675'683'072, 7.39}};

TEST(NamedSizes, HaveThePublishedParameterCounts) {
  for (const Published& p : kPublished) {
    EXPECT_EQ(parameter_count(named_config(p.name)), p.parameters) << p.name;
  }
}

TEST(NamedSizes, HaveThePublishedMultiplyAdds) {
  for (const Published& p : kPublished) {
    const double gmacs = model_flops_per_sample(named_config(p.name)) / 6e9;
    EXPECT_NEAR(gmacs / p.gmacs, 1, 0.015) << p.name << ": " << gmacs << ", not " << p.gmacs;
  }
}

// The FLOPs of the program's matrix products are those that the model claims; the first layers need
// no gradient by their input.
TEST(NamedSizes, TheProgramHasTheClaimedMatrixProducts) {
  for (const char* name : {"DiT-S/2", "DiT-XL/4"}) {
    const DitConfig config = named_config(name);
    const Program program = write_step(config, step_spec(2), cpu_device());
    double flops = 0;
    for (const Op& op : program.ops) {
      const std::string kind = op.kind();
      const bool product = kind == "linear" || kind == "linear_backward_input" ||
                           kind == "linear_backward_params" || kind == "attention";
      if (product) flops += op.flops();
      if (kind == "attention_backward") flops += op.flops() * 8 / 10;  // one product is a repeat
    }
    EXPECT_NEAR(flops / (2 * model_flops_per_sample(config)), 1, 2e-3) << name;
  }
}

TEST(Parameters, HaveTheNamesOfReferenceCheckpoints) {
  const DitConfig config = named_config("DiT-S/2");
  std::set<std::string> wanted = {"pos_embed",
                                  "x_embedder.proj.weight",
                                  "x_embedder.proj.bias",
                                  "t_embedder.mlp.0.weight",
                                  "t_embedder.mlp.0.bias",
                                  "t_embedder.mlp.2.weight",
                                  "t_embedder.mlp.2.bias",
                                  "y_embedder.embedding_table.weight",
                                  "final_layer.linear.weight",
                                  "final_layer.linear.bias",
                                  "final_layer.adaLN_modulation.1.weight",
                                  "final_layer.adaLN_modulation.1.bias"};
  ASSERT_EQ(wanted.size(), 12u);
  for (int i = 0; i < 12; ++i) {
    for (const char* part : {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "adaLN_modulation.1"}) {
      for (const char* end : {".weight", ".bias"}) {
        wanted.insert("blocks." + std::to_string(i) + "." + part + end);
      }
    }
  }
  std::set<std::string> found;
  for (const ParamSpec& spec : parameters(config)) {
    EXPECT_TRUE(found.insert(spec.name).second) << spec.name;
    EXPECT_EQ(spec.trained(), spec.name != "pos_embed");
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(found.size(), 12u + 10 * 12);
}

TEST(Config, RefusesWhatCannotBeAModel) {
  const auto refused = [](auto change) {
    DitConfig c = small_config();
    validate(c);
    change(c);
    EXPECT_THROW(validate(c), Error);
  };
  refused([](DitConfig& c) { c.width = 0; });
  refused([](DitConfig& c) { c.width = 18; });
  refused([](DitConfig& c) { c.patch = 3; });
  refused([](DitConfig& c) { c.patch = 0; });
  refused([](DitConfig& c) { c.image_size = -8; });
  refused([](DitConfig& c) { c.channels = 0; });
  refused([](DitConfig& c) { c.classes = -1; });
  refused([](DitConfig& c) { c.blocks.clear(); });
  refused([](DitConfig& c) { c.blocks[0] = {0, 0}; });  // half a block is one, nothing is none
  refused([](DitConfig& c) { c.blocks[0].heads = -1; });
  refused([](DitConfig& c) { c.blocks[1].mlp = -1; });
  refused([](DitConfig& c) { c.head_width = 0; });
  DitConfig c = small_config();
  EXPECT_THROW(set_blocks(c, 2, 3), Error);
  EXPECT_THROW(set_blocks(c, 0, 2), Error);
  EXPECT_THROW(named_size("DiT-M/2"), Error);
}

// ---- starting values
// -----------------------------------------------------------------------------

std::vector<float> initial(const DitConfig& config, const std::string& name, uint64_t seed = 1) {
  for (const ParamSpec& spec : parameters(config)) {
    if (spec.name != name) continue;
    std::vector<float> values(element_count(spec.shape), NAN);
    initialise(values.data(), spec, seed, config);
    return values;
  }
  throw Bug("no parameter " + name);
}

TEST(Initialisation, TheFirstOutputIsExactlyZero) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    Rig machine({write_step(m.config, step_spec(2, false), cpu_device())});
    for (const ParamSpec& spec : parameters(m.config)) {
      std::vector<float> whole(element_count(spec.shape));
      initialise(whole.data(), spec, 1, m.config);
      std::copy_n(whole.begin(), spec.count(), machine.host(spec.name));
      if (spec.sparse()) machine.set(kMask + spec.name, random_mask(spec));
    }
    machine.set_batch(m.config, 2);
    Random random(1);
    const int64_t count = 2 * m.config.channels * m.config.pixels();
    machine.set(kBatchNoise, random_column(count, random));
    machine.set(kBatchTime,
                m.config.objective == Objective::flow ? Column{0.25, 0.75} : Column{3, 700});
    machine.executor().run({});
    for (const double value : machine.get(kOutput)) ASSERT_EQ(value, 0);
  }
}

TEST(Initialisation, ThePositionTableIsTheFormula) {
  const DitConfig config = named_config("DiT-S/2");  // 16 x 16 positions, width 384
  const std::vector<float> table = initial(config, "pos_embed");
  const int D = 384, quarter = 96;
  for (const int row : {0, 1, 7, 15}) {
    for (const int column : {0, 1, 8, 15}) {
      for (const int k : {0, 1, 40, 95}) {
        const double omega = 1 / std::pow(10000.0, k / (D / 4.0));
        const float* at = &table[(row * 16 + column) * D];
        EXPECT_EQ(at[k], static_cast<float>(std::sin(column * omega)));
        EXPECT_EQ(at[quarter + k], static_cast<float>(std::cos(column * omega)));
        EXPECT_EQ(at[2 * quarter + k], static_cast<float>(std::sin(row * omega)));
        EXPECT_EQ(at[3 * quarter + k], static_cast<float>(std::cos(row * omega)));
      }
    }
  }
}

TEST(Initialisation, LinearWeightsAreXavierUniform) {
  const DitConfig config = named_config("DiT-S/2");
  const std::map<std::string, double> fans = {{"x_embedder.proj.weight", 384 + 4 * 2 * 2},
                                              {"blocks.0.attn.qkv.weight", 3 * 384 + 384},
                                              {"blocks.3.attn.proj.weight", 384 + 384},
                                              {"blocks.11.mlp.fc1.weight", 5 * 384},
                                              {"blocks.5.mlp.fc2.weight", 5 * 384}};
  for (const auto& [name, fan] : fans) {
    const std::vector<float> w = initial(config, name);
    const double bound = std::sqrt(6 / fan);
    double sum = 0, square = 0, largest = 0;
    for (const float x : w) {
      sum += x;
      square += static_cast<double>(x) * x;
      largest = std::max<double>(largest, std::abs(x));
    }
    const auto n = static_cast<double>(w.size());
    EXPECT_LE(largest, bound * (1 + 1e-6)) << name;
    EXPECT_GE(largest, bound * (1 - 20 / n)) << name;
    EXPECT_NEAR(sum / n, 0, 5 * bound / std::sqrt(3 * n)) << name;
    EXPECT_NEAR(square / n, bound * bound / 3, 5 * bound * bound / std::sqrt(11 * n)) << name;
  }
}

TEST(Initialisation, EmbeddersAreNormalWithDeviationTwoHundredths) {
  const DitConfig config = named_config("DiT-S/2");
  for (const char* name : {"t_embedder.mlp.0.weight", "t_embedder.mlp.2.weight",
                           "y_embedder.embedding_table.weight"}) {
    const std::vector<float> w = initial(config, name);
    const auto n = static_cast<double>(w.size());
    double sum = 0, square = 0, fourth = 0;
    for (const float x : w) {
      const double z = x / 0.02;
      sum += z;
      square += z * z;
      fourth += z * z * z * z;
    }
    EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n)) << name;
    EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2 / n)) << name;
    EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n)) << name;
  }
}

TEST(Initialisation, AdaLnFinalLayerAndBiasesAreZeroAndNormsAreOne) {
  DitConfig config = small_config();
  config.qk_norm = QkNormKind::layer;
  for (const ParamSpec& spec : parameters(config)) {
    const auto has = [&](const char* part) { return spec.name.find(part) != std::string::npos; };
    const std::vector<float> w = initial(config, spec.name);
    const bool one = has("_norm.weight");
    const bool zero = !one && (has(".bias") || has("adaLN") || has("final_layer"));
    if (!one && !zero) continue;
    EXPECT_TRUE(std::all_of(w.begin(), w.end(), [&](float x) { return x == (one ? 1 : 0); }))
        << spec.name;
  }
}

// A tensor's numbers follow from its name and the seed: other tensors, depth or order do not
// matter.
TEST(Initialisation, DependsOnNameAndSeedAlone) {
  const DitConfig small = small_config();
  DitConfig other = uneven_config(Objective::flow);
  other.classes = 0;
  other.blocks[1] = small.blocks[1];
  const std::string name = "blocks.1.mlp.fc1.weight";
  EXPECT_EQ(initial(small, name), initial(other, name));
  EXPECT_NE(initial(small, name), initial(small, name, 2));
  EXPECT_NE(initial(small, name), initial(small, "blocks.0.mlp.fc1.weight"));
}

// ---- the gradient of the whole
// -------------------------------------------------------------------

using Complex = std::complex<double>;

struct WholeModel {
  explicit WholeModel(DitConfig c)
      : config(std::move(c)), program(write_step(config, step_spec(2, false), cpu_device())) {
    Random random(9);
    const int64_t count = 2 * config.channels * config.pixels();
    for (const ParamSpec& spec : parameters(config)) {
      given[spec.name] = random_weights(spec, config);
      if (spec.sparse()) given[kMask + spec.name] = random_mask(spec);
    }
    given[kBatchX] = random_column(count, random, 0.4);
    for (double& x : given[kBatchX]) x = std::clamp(x, -0.9, 0.9);
    // Within a few deviations of what the network predicts: in the far tails of the likelihood at
    // t = 0, two numbers near 1 are subtracted, and nothing is left to compare.
    given[kBatchNoise] = random_column(count, random);
    for (double& x : given[kBatchNoise]) x = std::clamp(x, -1.0, 1.0);
    // Flow's times are multiples of 1/4096, so that 1000 t is exact in fp32.
    given[kBatchTime] =
        config.objective == Objective::flow ? Column{517 / 4096.0, 3001 / 4096.0} : Column{0, 412};
    if (config.classes > 0) given[kBatchY] = {1, static_cast<double>(config.classes)};
    for (auto& [name, values] : given) {
      for (double& x : values) x = static_cast<float>(x);
    }
  }

  DitConfig config;
  Program program;
  std::map<std::string, Column> given;
};

// Every trained weight moves at once along a random direction: the loss's derivative is Im/h of one
// complex run, and the gradient's product with the direction.
TEST(WholeModelGradient, IsTheComplexStepOfTheLoss) {
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const WholeModel model(m.config);
    ReferenceExecutor<double> real(model.program);
    for (const auto& [name, values] : model.given) real.set(name, values);
    real.run({});
    for (int direction = 0; direction < 3; ++direction) {
      const double h = 1e-50;
      ReferenceExecutor<Complex> complex(model.program);
      Random random(100 + direction);
      double slope = 0;
      for (const auto& [name, values] : model.given) complex.set(name, values);
      for (const ParamSpec& spec : parameters(m.config)) {
        if (!spec.trained()) continue;
        const Column v = random_column(spec.count(), random);
        const auto& gradient = real.get("grad." + spec.name);
        for (size_t i = 0; i < v.size(); ++i) {
          complex.at(spec.name)[i] += Complex(0, h * v[i]);
          slope += gradient[i] * v[i];
        }
      }
      complex.run({});
      const double wanted = complex.get(kLoss)[0].imag() / h;
      EXPECT_NEAR(complex.get(kLoss)[0].real(), real.get(kLoss)[0], 1e-10);
      EXPECT_GT(std::abs(wanted), 1e-3);
      EXPECT_NEAR(slope, wanted, 1e-9 * std::abs(wanted));
    }
  }
}

double norm(const Column& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

TEST(WholeModelGradient, FastKernelsAgreeWithTheTwins) {
  const OneThread one_thread;
  for (const ModelCase& m : model_cases()) {
    SCOPED_TRACE(m.name);
    const WholeModel model(m.config);
    ReferenceExecutor<double> twin(model.program);
    Rig fast({write_step(m.config, step_spec(2, false), cpu_device())});
    for (const auto& [name, values] : model.given) {
      twin.set(name, values);
      fast.set(name, values);
    }
    twin.run({});
    fast.executor().run({});
    std::vector<std::string> results = {kLoss, kOutput};
    for (const ParamSpec& spec : parameters(m.config)) {
      if (spec.trained()) results.push_back("grad." + spec.name);
    }
    for (const std::string& name : results) {
      const Column& wanted = twin.get(name);
      Column off = fast.get(name);
      for (size_t i = 0; i < off.size(); ++i) off[i] -= wanted[i];
      // Softmax does not see a shift of all keys: this gradient is zero, and its own size means
      // nothing.
      const size_t key_bias = name.find("k_norm.bias");
      const std::string scale =
          key_bias == std::string::npos ? name : name.substr(0, key_bias) + "q_norm.bias";
      EXPECT_LE(norm(off), 2e-5 * norm(twin.get(scale))) << name;
    }
  }
}

}  // namespace
}  // namespace ebb
