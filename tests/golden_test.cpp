// Parity with code that others wrote: diffusers' DiT in double precision (tests/reference).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "formats/model_json.h"
#include "formats/safetensors.h"
#include "kernels/cpu/arena.h"
#include "kernels/cpu/device.h"
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
StepSpec adamw_spec() {
  StepSpec spec;
  spec.batch = 2;
  spec.given_noise = true;
  spec.ema = false;
  spec.weight_decay = 0.01;
  spec.clip = 1.0f;
  return spec;
}

template <typename Rig>
void expect_losses(const std::string& name, double bound) {
  const Golden golden(name);
  Rig machine(write_step(golden.config(), adamw_spec(), cpu_device()));
  set_weights(machine, golden);
  for (const ParamSpec& spec : parameters(golden.config())) {
    machine.set("m." + spec.name, std::vector<double>(element_count(spec.shape), 0.0));
    machine.set("v." + spec.name, std::vector<double>(element_count(spec.shape), 0.0));
  }
  const auto losses = golden.real("losses");
  const auto norms = golden.real("grad_norms");
  double worst = 0;
  for (int step = 0; step < 20; ++step) {
    set_batch(machine, golden, "batch." + std::to_string(step) + ".");
    Scalars scalars;
    scalars.lr = 1e-3f;
    scalars.bias1 = static_cast<float>(1 - std::pow(0.9, step + 1));
    scalars.bias2 = static_cast<float>(1 - std::pow(0.999, step + 1));
    machine.run(scalars);
    const double error = relative_error(machine.get(kLoss), {losses[step]});
    worst = std::max(worst, error);
    EXPECT_LE(error, bound) << "step " << step;
    EXPECT_LE(relative_error({machine.get(kClip)[0]}, {norms[step]}), 10 * bound)
        << "step " << step;
  }
  // Shown by --gtest_output=xml.
  testing::Test::RecordProperty("worst_loss_error", fmt::format("{:.2g}", worst));
}

class GoldenTraining : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTraining, TwentyLossesAgree) { expect_losses<Fast>(GetParam(), 1e-5); }

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTraining,
                         testing::Values("adamw_ddpm_small", "adamw_flow_small"));

}  // namespace
}  // namespace ebb
