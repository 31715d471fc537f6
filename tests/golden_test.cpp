// Parity with code that others wrote: diffusers' DiT in double precision (tests/reference).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "formats/model_json.h"
#include "formats/safetensors.h"
#include "kernels/cpu/arena.h"
#include "kernels/cpu/device.h"
#include "model/optimizer.h"
#include "model/step.h"
#include "model_fixture.h"
#include "reference_executor.h"
#include "run/executor.h"

namespace ebb {
namespace {

class Golden {
 public:
  explicit Golden(const std::string& name)
      : file_(std::string(EBB_SOURCE_DIR "/tests/golden/") + name + ".safetensors"),
        config_(model_from_json(file_.metadata().at(kModelKey), name, Exit::data)) {}

  const DitConfig& config() const { return config_; }
  const SafetensorsReader& file() const { return file_; }

  std::vector<double> real(const std::string& name) const {
    const TensorEntry* entry = file_.find(name);
    if (entry == nullptr) throw Bug("golden file has no " + name);
    std::vector<double> values(entry->count());
    if (entry->type == TensorType::I64) {
      std::vector<int64_t> whole(entry->count());
      file_.read_i64(*entry, whole.data(), entry->count());
      values.assign(whole.begin(), whole.end());
    } else {
      file_.read_f64(*entry, values.data(), entry->count());
    }
    return values;
  }

 private:
  SafetensorsReader file_;
  DitConfig config_;
};

// The same program in fp32 kernels and in double twins, behind one face.
class Fast {
 public:
  explicit Fast(Program program)
      : plans_(make_plans({std::move(program)})),
        memory_(plans_, middling_machine()),
        executor_(plans_.plans[0], cpu_device(), memory_) {}

  void set(const std::string& name, const std::vector<double>& values) {
    const Buf b = program().find(name);
    if (!b) return;
    ASSERT_EQ(static_cast<int64_t>(values.size()), program().buffer(b).count()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      if (program().buffer(b).type == DType::i32) {
        host<int32_t>(name)[i] = static_cast<int32_t>(values[i]);
      } else {
        host(name)[i] = static_cast<float>(values[i]);
      }
    }
  }
  std::vector<double> get(const std::string& name) {
    const int64_t count = program().buffer(program().at(name)).count();
    const float* from = host(name);
    return {from, from + count};
  }
  void run(const Scalars& scalars) { executor_.run(scalars); }
  const Program& program() const { return plans_.plans[0].program; }

 private:
  template <typename T = float>
  T* host(const std::string& name) {
    return reinterpret_cast<T*>(memory_.host(plans_.plans[0], program().at(name)).data());
  }

  PlanSet plans_;
  RunMemory memory_;
  Executor executor_;
};

class Exact {
 public:
  explicit Exact(Program program) : program_(std::move(program)), executor_(program_) {}
  void set(const std::string& name, const std::vector<double>& values) {
    if (program_.find(name)) executor_.set(name, values);
  }
  std::vector<double> get(const std::string& name) { return executor_.get(name); }
  void run(const Scalars& scalars) { executor_.run(scalars); }

 private:
  Program program_;
  ReferenceExecutor<double> executor_;
};

double relative_error(const std::vector<double>& found, const std::vector<double>& wanted) {
  EXPECT_EQ(found.size(), wanted.size());
  double square = 0;
  double norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    square += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(square / norm);
}

template <typename Rig>
void set_weights(Rig& machine, const Golden& golden) {
  for (const ParamSpec& spec : parameters(golden.config())) {
    machine.set(spec.name, golden.real("weights." + spec.name));
  }
}

template <typename Rig>
void set_batch(Rig& machine, const Golden& golden, const std::string& prefix) {
  machine.set(kBatchX, golden.real(prefix + "x"));
  machine.set(kBatchNoise, golden.real(prefix + "noise"));
  machine.set(kBatchTime, golden.real(prefix + "t"));
  machine.set(kBatchY, golden.real(prefix + "y"));
}

StepSpec gradient_spec(const Golden& golden) {
  StepSpec spec;
  spec.batch = golden.file().find("batch.x")->shape[0];
  spec.given_noise = true;
  spec.update = false;
  return spec;
}

template <typename Rig>
void expect_gradients(const std::string& name, double loss_bound, double gradient_bound) {
  const Golden golden(name);
  Rig machine(write_step(golden.config(), gradient_spec(golden), cpu_device()));
  set_weights(machine, golden);
  set_batch(machine, golden, "batch.");
  machine.run({});
  EXPECT_LE(relative_error(machine.get(kLoss), golden.real("loss")), loss_bound);
  EXPECT_LE(relative_error(machine.get(kOutput), golden.real("output")), gradient_bound);
  for (const ParamSpec& spec : parameters(golden.config())) {
    if (!spec.trained()) continue;
    EXPECT_LE(relative_error(machine.get("grad." + spec.name), golden.real("grad." + spec.name)),
              gradient_bound)
        << name << ": " << spec.name;
  }
}

class GoldenGradients : public testing::TestWithParam<const char*> {};

TEST_P(GoldenGradients, FastKernelsAgreeToFp32) { expect_gradients<Fast>(GetParam(), 1e-6, 2e-5); }

TEST_P(GoldenGradients, TwinsAgreeToDouble) { expect_gradients<Exact>(GetParam(), 1e-7, 1e-7); }

INSTANTIATE_TEST_SUITE_P(Cases, GoldenGradients,
                         testing::Values("ddpm_small", "ddpm_nosigma", "flow_small",
                                         "flow_nolabel"));

// The settings of make_golden.py.
struct Training {
  const char* file;
  Optimizer optimizer;
  float lr, clip;
  double beta1, beta2, decay;
};
constexpr Training kTrainings[] = {
    {"adamw_ddpm_small", Optimizer::adamw, 1e-3f, 1, 0.9, 0.999, 0.01},
    {"adamw_flow_small", Optimizer::adamw, 1e-3f, 1, 0.9, 0.999, 0.01},
    {"lion_ddpm_nosigma", Optimizer::lion, 1e-3f, 1, 0.9, 0.99, 0.1},
    {"lion_flow_nolabel", Optimizer::lion, 1e-3f, 1, 0.9, 0.99, 0.1},
    {"adafactor_ddpm_nosigma", Optimizer::adafactor, 1e-2f, 0.02f, 0, 0, 0.1},
    {"adafactor_flow_nolabel", Optimizer::adafactor, 1e-2f, 0.02f, 0, 0, 0.1},
};
constexpr int kSteps = 20;

void PrintTo(const Training& training, std::ostream* out) { *out << training.file; }

StepSpec training_spec(const Training& training) {
  StepSpec spec;
  spec.batch = 2;
  spec.given_noise = true;
  spec.ema = false;
  spec.optimizer = training.optimizer;
  spec.beta1 = training.beta1;
  spec.beta2 = training.beta2;
  spec.weight_decay = training.decay;
  spec.clip = training.clip;
  return spec;
}

Scalars golden_scalars(const Training& training, int step) {
  Scalars scalars;
  scalars.lr = training.lr;
  // Once above 1 / sqrt(update), which Adafactor then takes instead.
  if (training.optimizer == Optimizer::adafactor && step == kSteps - 1) scalars.lr = 1;
  scalars.bias1 = static_cast<float>(1 - std::pow(training.beta1, step + 1));
  scalars.bias2 = static_cast<float>(1 - std::pow(training.beta2, step + 1));
  scalars.update = step + 1;
  return scalars;
}

template <typename Rig>
void set_moments(Rig& machine, const Golden& golden, const StepSpec& spec) {
  for (const ParamSpec& param : parameters(golden.config())) {
    for (const StateBuffer& state : state_of(param, spec, {})) {
      if (state.purpose != Purpose::moment) continue;
      machine.set(state.prefix + param.name, std::vector<double>(element_count(state.shape), 0.0));
    }
  }
}

// The weights' way from start to end: how far off it is in the worst tensor. Lion's step is a sign,
// which rounding may turn where the moment is near zero: such elements are counted instead.
struct Way {
  double worst = 0;
  int64_t turned = 0, elements = 0;
};

template <typename Rig>
Way compare_way(Rig& machine, const Golden& golden, const Training& training) {
  Way way;
  const bool signs = training.optimizer == Optimizer::lion;
  for (const ParamSpec& param : parameters(golden.config())) {
    if (!param.trained()) continue;
    const auto before = golden.real("weights." + param.name);
    const auto wanted = golden.real("moved." + param.name);
    std::vector<double> moved = machine.get(param.name);
    // The keys' bias, a third of this one, has no gradient but rounding: it has no sign at all.
    const bool has_keys = signs && param.name.ends_with("attn.qkv.bias");
    for (size_t i = 0; i < moved.size(); ++i) {
      moved[i] -= before[i];
      const bool of_key = has_keys && i / (moved.size() / 3) == 1;
      const bool turned = signs && std::abs(moved[i] - wanted[i]) > training.lr / 2;
      if (turned && !of_key) ++way.turned;
      if (turned || of_key) moved[i] = wanted[i];
    }
    way.worst = std::max(way.worst, relative_error(moved, wanted));
    way.elements += static_cast<int64_t>(moved.size());
  }
  return way;
}

struct Bounds {
  double loss, way, turned;  // the last: a share of the elements
};

template <typename Rig>
void expect_training(const Training& training, const Bounds& bounds) {
  const Golden golden(training.file);
  const StepSpec spec = training_spec(training);
  Rig machine(write_step(golden.config(), spec, cpu_device()));
  set_weights(machine, golden);
  set_moments(machine, golden, spec);
  const auto losses = golden.real("losses");
  const auto norms = golden.real("grad_norms");
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    set_batch(machine, golden, "batch." + std::to_string(step) + ".");
    machine.run(golden_scalars(training, step));
    const double error = relative_error(machine.get(kLoss), {losses[step]});
    worst = std::max(worst, error);
    EXPECT_LE(error, bounds.loss) << "step " << step;
    EXPECT_LE(relative_error({machine.get(kClip)[0]}, {norms[step]}), 10 * bounds.loss)
        << "step " << step;
  }
  // Shown by --gtest_output=xml.
  testing::Test::RecordProperty("worst_loss_error", fmt::format("{:.2g}", worst));
  if (training.optimizer == Optimizer::adamw) return;  // its files hold no more
  const Way way = compare_way(machine, golden, training);
  EXPECT_LE(way.worst, bounds.way);
  EXPECT_LE(way.turned, bounds.turned * static_cast<double>(way.elements));
  testing::Test::RecordProperty("worst_way_error", fmt::format("{:.2g}", way.worst));
  testing::Test::RecordProperty("turned", std::to_string(way.turned));
}

class GoldenTraining : public testing::TestWithParam<Training> {};

TEST_P(GoldenTraining, TwentyStepsAgree) {
  // A step that turns moves the losses after it.
  const bool signs = GetParam().optimizer == Optimizer::lion;
  expect_training<Fast>(GetParam(), {signs ? 1e-4 : 1e-5, 1e-4, 1e-3});
}

TEST_P(GoldenTraining, TwentyStepsOfTheTwinsAgree) {
  expect_training<Exact>(GetParam(), {1e-7, 1e-6, 0});
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTraining, testing::ValuesIn(kTrainings),
                         [](const auto& of) { return std::string(of.param.file); });

}  // namespace
}  // namespace ebb
