#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "kernels/cpu/device.h"
#include "run/executor.h"
#include "run/run_memory.h"
#include "train/budget.h"
#include "train/calibration.h"
#include "train/checkpoint.h"

namespace ebb {

namespace {

// The model: what the file says, then what flags say of the rest.
DitConfig grad_model(Settings& s, const SafetensorsReader& weights) {
  DitConfig given;
  given.objective = s.objective == "flow" ? Objective::flow : Objective::ddpm;
  if (s.image_size > 0) given.image_size = s.image_size;
  if (s.heads > 0) {
    const TensorEntry* patch = weights.find("x_embedder.proj.weight");
    given.width = patch != nullptr && !patch->shape.empty() ? patch->shape[0] : 0;
    set_blocks(given, 1, s.heads);
  }
  DitConfig config = model_of(weights, given, s.heads > 0);
  validate(config);
  return config;
}

const TensorEntry& batch_tensor(const SafetensorsReader& file, const char* name,
                                const Shape& shape) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    fail(Exit::data, fmt::format("{}: no tensor {}", file.path().string(), name),
         "a batch file has x, noise, t and y");
  }
  if (entry->shape != shape) {
    fail(Exit::data, fmt::format("{}: {} has shape {}, wanted {}", file.path().string(), name,
                                 shape_text(entry->shape), shape_text(shape)));
  }
  return *entry;
}

int64_t batch_size(const SafetensorsReader& file) {
  const TensorEntry* x = file.find("x");
  if (x == nullptr || x->shape.size() != 4 || x->shape[0] < 1) {
    fail(Exit::data, fmt::format("{}: no tensor x of shape (B,C,H,W)", file.path().string()),
         "a batch file has x, noise, t and y");
  }
  return x->shape[0];
}

void check_finite(const float* values, int64_t count, const char* name, const std::string& where) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) {
      fail(Exit::data, fmt::format("{}: {} has {} at element {}", where, name, values[i], i));
    }
  }
}

void load_times(float* t, const SafetensorsReader& file, int64_t B, Objective objective) {
  const TensorEntry& entry = batch_tensor(file, "t", {B});
  std::vector<double> times(B);
  if (objective == Objective::ddpm) {
    std::vector<int64_t> whole(B);
    file.read_i64(entry, whole.data(), B);
    times.assign(whole.begin(), whole.end());
  } else {
    file.read_f64(entry, times.data(), B);
  }
  const double high = objective == Objective::ddpm ? kDiffusionSteps - 1 : 1;
  for (int64_t b = 0; b < B; ++b) {
    if (!(times[b] >= 0 && times[b] <= high)) {
      fail(Exit::data, fmt::format("{}: t has {} at element {}, wanted 0 to {}",
                                   file.path().string(), times[b], b, high));
    }
    t[b] = static_cast<float>(times[b]);
  }
}

void load_labels(int32_t* y, const SafetensorsReader& file, int64_t B, int64_t classes) {
  std::vector<int64_t> labels(B);
  file.read_i64(batch_tensor(file, "y", {B}), labels.data(), B);
  for (int64_t b = 0; b < B; ++b) {
    if (labels[b] < 0 || labels[b] > classes) {
      fail(Exit::data,
           fmt::format("{}: y has {} at element {}, wanted 0 to {} ({} meaning no label)",
                       file.path().string(), labels[b], b, classes, classes));
    }
    y[b] = static_cast<int32_t>(labels[b]);
  }
}

void load_batch(const Executor& executor, const SafetensorsReader& file, const DitConfig& c,
                int64_t B) {
  const Shape image = {B, c.channels, c.image_size, c.image_size};
  for (const auto& [name, buffer] : {std::pair{"x", kBatchX}, {"noise", kBatchNoise}}) {
    const TensorEntry& entry = batch_tensor(file, name, image);
    file.read_f32(entry, executor.host(buffer), entry.count());
    check_finite(executor.host(buffer), entry.count(), name, file.path().string());
  }
  load_times(executor.host(kBatchTime), file, B, c.objective);
  if (c.classes > 0) load_labels(executor.host<int32_t>(kBatchY), file, B, c.classes);
}

void write_result(const std::string& path, const Plan& plan, const Executor& executor) {
  std::vector<TensorData> tensors;
  for (const Buf b : plan.program.outputs) {
    const Buffer& buffer = plan.program.buffer(b);
    const std::string name = buffer.name == kOutput ? "output" : buffer.name;
    tensors.push_back({name, TensorType::F32, buffer.shape, executor.host(buffer.name)});
  }
  write_safetensors(path, tensors, {}, false);
}

}  // namespace

int run_grad(Settings s) {
  for (const char* name : {"weights", "batch-file", "out"}) need(s, name);
  resolve_threads(s);
  const int64_t budget = resolve_budget(s);
  const int64_t limit = header_limit(budget);
  const SafetensorsReader weights(s.weights_file, Exit::disk, limit);
  const SafetensorsReader batch(s.batch_file, Exit::data, limit);
  const DitConfig config = grad_model(s, weights);
  StepSpec spec;
  spec.batch = batch_size(batch);
  spec.given_noise = true;
  spec.update = false;
  const std::filesystem::path offload = resolve_offload(s);
  const PlannedRun planned =
      plan_fitting_run({model_label(s, config), config, spec, {}, resolve_forced(s), budget},
                       machine_costs(offload));
  const Plan& plan = planned.step_plan();
  RunMemory memory(planned.plans, offload);
  Executor executor(plan, cpu_device(), memory,
                    s.debug_memory ? Executor::Mode::debug_memory : Executor::Mode::normal);
  State state(plan, memory);
  load_state(weights, state, config);
  load_batch(executor, batch, config, spec.batch);
  executor.run({});
  const float loss = *executor.host(kLoss);
  if (!std::isfinite(loss)) {
    fail(Exit::numbers, fmt::format("grad: the loss is {}", loss), "look for NaN in the weights");
  }
  write_result(s.out, plan, executor);
  fmt::print("loss {:.9g}\n", loss);
  return 0;
}

}  // namespace ebb
