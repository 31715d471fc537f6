#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "formats/model_json.h"
#include "machine/budget.h"
#include "state/checkpoint.h"
#include "state/weights_model.h"
#include "train/session.h"

namespace ebb {

namespace {

std::string text(int64_t number) { return fmt::format("{}", number); }

// As it was given, where the file has as many weights of each matrix as that.
std::string density_text(const Settings& s, const DitConfig& c) {
  return fmt::format("{}", has_density(c, s.density) ? s.density : density_of(c));
}

// Everything that the user says of the model agrees with what the file says.
void refuse_contradictions(const Settings& s, const DitConfig& c, const std::string& file) {
  struct Said {
    const char* name;
    std::string given, found;
  };
  const Said all[] = {
      {"width", text(s.width), text(c.width)},
      {"depth", text(s.depth), text(c.depth())},
      {"heads", text(s.heads), text(c.width / c.head_width)},
      {"shapes", s.shapes.empty() ? "" : shapes_text(parse_shapes(s.shapes, s.given.at("shapes"))),
       shapes_text(c.blocks)},
      {"patch", text(s.patch), text(c.patch)},
      {"image-size", text(s.image_size), text(c.image_size)},
      {"channels", text(s.channels), text(c.channels)},
      {"objective", s.objective, objective_name(c.objective)},
      {"no-learn-sigma", s.no_learn_sigma ? "true" : "false", c.learn_sigma ? "false" : "true"},
      {"qk-norm", s.qk_norm, qk_norm_name(c.qk_norm)},
      {"density", fmt::format("{}", s.density), density_text(s, c)},
  };
  for (const Said& said : all) {
    if (!s.has(said.name) || said.given == said.found) continue;
    fail(Exit::usage,
         fmt::format("{}: found {}, but {} has {}", s.given.at(said.name), said.given, file,
                     said.found),
         "leave it out: the file says it");
  }
}

// A named size says four things, where flags do not say them otherwise.
void expand_name(Settings& s) {
  if (s.model.empty()) return;
  const NamedSize size = named_size(s.model, s.given.at("model"));
  const std::tuple<const char*, int64_t*, int64_t> parts[] = {{"width", &s.width, size.width},
                                                              {"depth", &s.depth, size.depth},
                                                              {"heads", &s.heads, size.heads},
                                                              {"patch", &s.patch, size.patch}};
  for (const auto& [name, member, value] : parts) {
    if (s.has(name) || (member == &s.depth && !s.shapes.empty())) continue;
    *member = value;
    s.given[name] = fmt::format("{} {}: {}", s.given.at("model"), s.model, name);
  }
}

// The model: what the file says, then what flags say of the rest. A file without a position table
// fits any image size: that of the batch is the one meant.
DitConfig grad_model(Settings& s, const SafetensorsReader& weights, int64_t batch_image_size) {
  expand_name(s);
  BesideTensors said;
  said.heads = s.heads;
  said.image_size = s.image_size > 0 ? s.image_size : batch_image_size;
  if (s.objective == "flow") said.objective = Objective::flow;
  DitConfig config = model_of(weights, said);
  refuse_contradictions(s, config, weights.path().string());
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

// A batch file has what a batch needs, and nothing that nobody would read.
void check_names(const SafetensorsReader& file) {
  constexpr const char* kHint = "a batch file has x, noise, t and y";
  for (const char* name : {"x", "noise", "t"}) {
    if (file.find(name) != nullptr) continue;
    fail(Exit::data, fmt::format("{}: no tensor {}", file.path().string(), name), kHint);
  }
  for (const TensorEntry& entry : file.tensors()) {
    if (entry.name == "x" || entry.name == "noise" || entry.name == "t" || entry.name == "y") {
      continue;
    }
    fail(Exit::data,
         fmt::format("{}: found tensor {}, which would not be read", file.path().string(),
                     printable(entry.name)),
         fmt::format("{}, and nothing else", kHint));
  }
}

// (B,C,H,W)
const Shape& batch_shape(const SafetensorsReader& file) {
  const Shape& shape = file.find("x")->shape;
  if (shape.size() != 4 || shape[0] < 1) {
    fail(Exit::data, fmt::format("{}: x has shape {}, wanted (B,C,H,W)", file.path().string(),
                                 shape_text(shape)));
  }
  return shape;
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

// y: B labels, or nothing to fill for a model without classes. The file of such a model need have
// no labels; those that it has say "no label", which is 0 then.
void load_labels(int32_t* y, const SafetensorsReader& file, int64_t B, int64_t classes) {
  if (classes == 0 && file.find("y") == nullptr) return;
  std::vector<int64_t> labels(B);
  file.read_i64(batch_tensor(file, "y", {B}), labels.data(), B);
  for (int64_t b = 0; b < B; ++b) {
    if (labels[b] < 0 || labels[b] > classes) {
      fail(Exit::data,
           fmt::format("{}: y has {} at element {}, wanted 0 to {} ({} meaning no label)",
                       file.path().string(), labels[b], b, classes, classes));
    }
    if (classes > 0) y[b] = static_cast<int32_t>(labels[b]);
  }
}

void load_batch(Session& session, const SafetensorsReader& file, const DitConfig& c, int64_t B) {
  const Shape image = {B, c.channels, c.image_size, c.image_size};
  for (const auto& [name, buffer] : {std::pair{"x", kBatchX}, {"noise", kBatchNoise}}) {
    const TensorEntry& entry = batch_tensor(file, name, image);
    const std::span<float> values = session.host<float>(buffer);
    file.read_f32(entry, values.data(), entry.count());
    check_finite(values.data(), entry.count(), name, file.path().string());
  }
  load_times(session.host<float>(kBatchTime).data(), file, B, c.objective);
  load_labels(c.classes > 0 ? session.host<int32_t>(kBatchY).data() : nullptr, file, B, c.classes);
}

// The gradient of a sparse weight has the weight's whole shape, 0 where nothing is left.
void add_zeros(TensorData& gradient, Session& session) {
  constexpr std::string_view kGradient = "grad.";
  if (!gradient.name.starts_with(kGradient)) return;
  const State& state = session.state();
  const StateTensor& weight = state.at(gradient.name.substr(kGradient.size()));
  if (!weight.mask) return;
  const auto* left = static_cast<const float*>(std::exchange(gradient.data, nullptr));
  gradient.shape = weight.matrix;
  gradient.read = [&state, &weight, left](int64_t offset, void* out, int64_t bytes) {
    constexpr auto kSize = static_cast<int64_t>(sizeof(float));
    state.spread(weight, left, offset / kSize, static_cast<float*>(out), bytes / kSize);
  };
}

void write_result(const std::string& path, const Plan& plan, Session& session) {
  std::vector<TensorData> tensors;
  for (const Buf b : plan.program.outputs) {
    const Buffer& buffer = plan.program.buffer(b);
    const std::string name = buffer.name == kOutput ? "output" : buffer.name;
    tensors.push_back(
        {name, TensorType::F32, buffer.shape, session.host<float>(buffer.name).data()});
    add_zeros(tensors.back(), session);
  }
  write_safetensors(path, tensors, {}, false);
}

}  // namespace

int run_grad(Settings s) {
  for (const char* name : {"weights", "batch-file", "out"}) need(s, name);
  check_writable(s.out);
  const MeasuredMachine measured = resolve_machine(s);
  const Machine& machine = inside(measured);
  const int64_t budget = resolve_budget(s, measured);
  const int64_t limit = header_limit(budget);
  const SafetensorsReader weights(s.weights_file, Exit::disk, limit);
  const SafetensorsReader batch(s.batch_file, Exit::data, limit);
  check_names(batch);
  const Shape& shape = batch_shape(batch);
  const DitConfig config = grad_model(s, weights, shape[2]);
  StepSpec spec;
  spec.batch = shape[0];
  spec.given_noise = true;
  spec.update = false;
  const PlannedRun planned =
      plan_fitting_run({model_label(s, config), config, spec, {}, s.decisions, budget}, machine);
  Session session(config, planned, machine,
                  s.debug_memory ? Executor::Mode::debug_memory : Executor::Mode::normal);
  load_state(weights, session.state(), config);
  load_batch(session, batch, config, spec.batch);
  session.step().run({});
  const auto loss = session.step().first(kLoss);
  if (!std::isfinite(loss)) {
    fail(Exit::numbers, fmt::format("grad: the loss is {}", loss), "look for NaN in the weights");
  }
  write_result(s.out, planned.step_plan(), session);
  fmt::print("loss {:.9g}\n", loss);
  return 0;
}

}  // namespace ebb
