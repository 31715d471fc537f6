// Small models of every kind, weights for them, and a machine that runs their programs.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/device.h"
#include "made_feed.h"
#include "model/step.h"
#include "op_inputs.h"
#include "plan/plan.h"
#include "run/disk_store.h"
#include "run/executor.h"
#include "run/run_memory.h"
#include "state/state.h"

namespace ebb {

struct ModelCase {
  const char* name;
  DitConfig config;
};

// Two even blocks, 16 tokens, three channels and five classes.
inline DitConfig small_config(Objective objective = Objective::ddpm) {
  DitConfig c;
  c.width = 16;
  c.patch = 2;
  c.image_size = 8;
  c.channels = 3;
  c.classes = 5;
  c.objective = objective;
  c.learn_sigma = objective == Objective::ddpm;
  set_blocks(c, 2, 2);
  return c;
}

// What pruning leaves: every block has its own heads and its own MLP.
inline DitConfig uneven_config(Objective objective, QkNormKind qk_norm = QkNormKind::layer) {
  DitConfig c = small_config(objective);
  c.qk_norm = qk_norm;
  c.blocks = {{1, 20}, {3, 7}, {2, 33}};
  return c;
}

// What pruning weights one by one leaves: every matrix has its own share of them, some all.
inline DitConfig sparse_config(Objective objective = Objective::ddpm) {
  DitConfig c = uneven_config(objective);
  int64_t share = 1;
  for (const ParamSpec& spec : parameters(c)) {
    if (!spec.prunable() || share++ % 6 == 0) continue;
    left_of(c, spec.left_at) = std::max<int64_t>(1, element_count(spec.shape) * (share % 5) / 5);
  }
  return c;
}

inline std::vector<ModelCase> model_cases() {
  DitConfig no_classes = small_config(Objective::flow);
  no_classes.classes = 0;
  DitConfig qk_layer = small_config();
  qk_layer.qk_norm = QkNormKind::layer;
  DitConfig qk_rms = small_config(Objective::flow);
  qk_rms.qk_norm = QkNormKind::rms;
  DitConfig no_sigma = small_config();
  no_sigma.learn_sigma = false;
  DitConfig halves = qk_layer;  // a block without heads, one without an MLP
  halves.blocks = {{0, 20}, {2, 16}, {1, 0}};
  return {{"ddpm with learned sigma", small_config()},
          {"ddpm without", no_sigma},
          {"flow", small_config(Objective::flow)},
          {"no classes", no_classes},
          {"qk-norm layer", qk_layer},
          {"qk-norm rms", qk_rms},
          {"half blocks", halves},
          {"uneven ddpm", uneven_config(Objective::ddpm)},
          {"uneven flow", uneven_config(Objective::flow, QkNormKind::rms)},
          {"sparse", sparse_config()}};
}

inline DitConfig named_config(const std::string& name) {
  DitConfig c;
  const NamedSize size = named_size(name);
  c.width = size.width;
  c.patch = size.patch;
  set_blocks(c, size.depth, size.heads);
  return c;
}

inline StepSpec step_spec(int64_t batch, bool update = true) {
  StepSpec spec;
  spec.batch = batch;
  spec.update = update;
  spec.given_noise = !update;
  return spec;
}

// A training run's scalars at step k.
inline Scalars training_scalars(int64_t k) {
  Scalars s;
  s.seed = 7;
  s.step = k;
  s.lr = 1e-2f;
  s.bias1 = static_cast<float>(1 - std::pow(0.9, k + 1));
  s.bias2 = static_cast<float>(1 - std::pow(0.999, k + 1));
  s.ema_decay = 0.9;
  return s;
}

// Which of a sparse one's elements are left, as its ops take it.
inline Column random_mask(const ParamSpec& spec) {
  Random random(std::hash<std::string>{}(spec.name));
  return random_mask(spec.rows(), spec.columns(), spec.left, random);
}

// Every trained tensor away from zero, so that nothing of the network is hidden behind the zeros
// of the initialisation.
inline Column random_weights(const ParamSpec& spec, const DitConfig& config) {
  std::vector<float> start(element_count(spec.shape));
  initialise(start.data(), spec, 1, config);
  Column values(start.begin(), start.end());
  if (!spec.trained()) return values;
  Random random(std::hash<std::string>{}(spec.name));
  const Column noise = random_column(element_count(spec.shape), random, 0.2);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(values[i] + noise[i]);
  if (!spec.sparse()) return values;
  const Column mask = random_mask(spec);
  Column left;
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    if (is_left(mask.data(), spec.columns(), i / spec.columns(), i % spec.columns())) {
      left.push_back(values[i]);
    }
  }
  return left;
}

// Threads that wait by spinning make tiny models slow on a busy machine. To be made before programs
// are written.
class OneThread {
 public:
  OneThread() { set_team_threads(1); }
  ~OneThread() { set_team_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = team_threads();
};

// A machine that is the same everywhere: nobody has measured it.
inline Machine middling_machine(const Device& device = cpu_device()) {
  Machine machine;
  machine.device = &device;
  machine.outside_bytes = 16 << 20;
  machine.available_bytes = int64_t{1} << 42;
  return machine;
}

// The same with a disk that works at these rates.
inline Machine with_disk(Machine machine, double fetch_rate = 1e9, double store_rate = 1e9) {
  machine.lanes.push_back(disk_lane(std::filesystem::temp_directory_path()));
  machine.lanes.back().fetch_rate = fetch_rate;
  machine.lanes.back().store_rate = store_rate;
  return machine;
}

// What moves everything that can be moved to that disk, or some of it.
inline Offload to_disk(bool state, bool weights, bool inputs) {
  return {state, weights, inputs, false, 0, kDiskMemory};
}
inline Offload rests_to_disk(bool state) { return {state, false, false, true, 0, kDiskMemory}; }

// Programs in memory of their own; program 0 unless said otherwise.
class Rig {
 public:
  explicit Rig(std::vector<Program> programs, Executor::Mode mode = Executor::Mode::normal,
               const Device& device = cpu_device())
      : Rig(std::move(programs), with_disk(middling_machine(device)), mode) {}
  Rig(std::vector<Program> programs, const Machine& machine,
      Executor::Mode mode = Executor::Mode::normal)
      : plans_(std::make_unique<PlanSet>(make_plans(std::move(programs), machine.limits()))),
        memory_(std::make_unique<RunMemory>(*plans_, machine)) {
    executors_.reserve(plans_->plans.size());
    for (const Plan& plan : plans_->plans) {
      executors_.emplace_back(plan, *machine.device, *memory_, mode);
    }
  }

  void set(const std::string& name, const Column& values, int program = 0) {
    const Program& p = plan(program).program;
    const Buffer& buffer = p.buffer(p.at(name));
    require(static_cast<int64_t>(values.size()) == buffer.count(), "{}: {} values", name,
            values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (buffer.type == DType::i32) {
        host<int32_t>(name, program)[i] = static_cast<int32_t>(values[i]);
      } else if (buffer.type == DType::u8) {
        host<uint8_t>(name, program)[i] = static_cast<uint8_t>(values[i]);
      } else {
        host(name, program)[i] = static_cast<float>(values[i]);
      }
    }
  }
  Column get(const std::string& name, int program = 0) const {
    const Program& p = plan(program).program;
    const float* from = host(name, program);
    return {from, from + p.buffer(p.at(name)).count()};
  }
  // Where a buffer lies.
  template <typename T = float>
  T* host(const std::string& name, int program = 0) const {
    return reinterpret_cast<T*>(
        memory_->host(plan(program), plan(program).program.at(name)).data());
  }
  // Weights, and their average, as random_weights() makes them; moments stay zero.
  void set_weights(const DitConfig& config, int program = 0) {
    State state(plan(program), *memory_, config, spec_of(config, program));
    for (const ParamSpec& spec : parameters(config)) {
      const Column weights = random_weights(spec, config);
      if (spec.sparse()) set(kMask + spec.name, random_mask(spec), program);
      for (const std::string& name : {spec.name, kAverage + spec.name}) {
        if (!plan(program).program.find(name)) continue;
        state.fill(state.at(name), [&](float* values, int64_t first, int64_t count) {
          std::copy_n(weights.begin() + first, count, values);
        });
      }
    }
  }
  void set_batch(const DitConfig& config, int64_t batch) {
    const Program& p = plan().program;
    if (const Buf stored = p.find(kBatchStored)) {
      feed_ = std::make_unique<MadeFeed>(batch, config.channels * config.pixels(), config.classes,
                                         p.buffer(stored).type);
      executor().take_from(*feed_);
      return;
    }
    Random random(3);
    const auto x = random_column(batch * config.channels * config.pixels(), random, 0.5);
    if (p.find(kBatchX)) set(kBatchX, x);  // of a stage of a pipeline not all
    if (p.find(kBatchY)) set(kBatchY, random_labels(batch, config.classes, random));
  }
  // All residents of a program, by bits.
  std::string residents(int program = 0) const {
    std::string bytes;
    const Plan& p = plan(program);
    for (size_t i = 0; i < p.program.buffers.size(); ++i) {
      const Buffer& b = p.program.buffers[i];
      if (!b.resident) continue;
      const std::span<std::byte> at = memory_->host(p, Buf{static_cast<int32_t>(i)});
      bytes.append(reinterpret_cast<const char*>(at.data()), at.size());
    }
    return bytes;
  }

  const PlanSet& plans() const { return *plans_; }
  const Plan& plan(int program = 0) const { return plans_->plans[program]; }
  Executor& executor(int program = 0) { return executors_[program]; }
  RunMemory& memory() { return *memory_; }

 private:
  // A step as the program keeps its state: which storage its buffers show.
  StepSpec spec_of(const DitConfig& config, int program) const {
    const Program& p = plan(program).program;
    StepSpec spec;
    for (const ParamSpec& param : parameters(config)) {
      const auto type = [&](const char* prefix, DType otherwise) {
        const Buf b = p.find(prefix + param.name);
        return b ? p.buffer(b).type : otherwise;
      };
      Storage& storage = spec.choices.storage;
      if (type("", DType::f32) == DType::bf16) storage.activation = DType::bf16;
      if (type("m.", DType::f32) == DType::u8) storage.moments = Moments::coded;
      if (type("ema.", DType::f32) == DType::bf16) storage.ema = DType::bf16;
    }
    spec.update = false;  // of a rank that owns only some, any of them says so
    for (const ParamSpec& param : parameters(config)) {
      if (p.find(kFirstMoment + param.name) || p.find(kAverage + param.name)) spec.update = true;
    }
    return spec;
  }

  std::unique_ptr<PlanSet> plans_;
  std::unique_ptr<RunMemory> memory_;
  std::unique_ptr<MadeFeed> feed_;
  std::vector<Executor> executors_;
};

}  // namespace ebb
