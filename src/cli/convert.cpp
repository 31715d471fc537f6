// Weights for others: all of a checkpoint's, whole, under the reference's names.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/checkpoint_of.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "formats/model_json.h"
#include "formats/safetensors_stream.h"
#include "prune/surgery.h"
#include "state/checkpoint.h"
#include "state/matrix_stream.h"

namespace ebb {

namespace {

// The model when what was pruned of its matrices is there again, as zeros.
DitConfig whole_model(DitConfig config) {
  for (const ParamSpec& spec : parameters(config)) {
    if (spec.prunable()) left_of(config, spec.left_at) = 0;
  }
  return config;
}

void write_weights(const std::string& to, const SafetensorsReader& file, const DitConfig& config,
                   const std::string& prefix) {
  constexpr int64_t kPart = 1 << 18;  // elements at a time
  constexpr auto kItem = static_cast<int64_t>(sizeof(float));
  const DitConfig whole = whole_model(config);
  std::vector<ParamSpec> params = parameters(config);
  // A table that an older file does not have is made by whoever reads this one, too.
  std::erase_if(params, [&](const ParamSpec& p) { return !p.trained() && !file.find(p.name); });
  std::vector<TensorData> tensors;
  for (const ParamSpec& param : params) {
    tensors.push_back({param.name, TensorType::F32, param.shape, nullptr});
  }
  SafetensorsWriter writer(to, tensors, {{"format", "pt"}, {kModelKey, model_to_json(whole)}},
                           false);
  std::vector<float> part(kPart);
  for (const ParamSpec& param : params) {
    MatrixStream stream(file, param, param.trained() ? prefix : "");
    while (stream.left() > 0) {
      const int64_t count = std::min(kPart, stream.left());
      stream.read(part.data(), count);
      writer.write(part.data(), count * kItem);
    }
  }
  writer.commit();
}

}  // namespace

int run_convert(Settings s) {  // NOLINT(performance-unnecessary-value-param): as every verb
  need(s, "from");
  need(s, "to");
  const std::filesystem::path from = checkpoint_of(s.from);
  check_writable(s.to);
  const SafetensorsReader file(from, Exit::disk);
  const CheckpointInfo info = read_info(file);
  check_tensors(file, info);
  const bool average = s.weights == "ema";
  const std::string first = kAverage + parameters(info.config)[1].name;
  if (average && file.find(first) == nullptr) {
    fail(Exit::disk, fmt::format("{}: no average of the weights", printable(from.string())),
         "give --weights raw");
  }
  write_weights(s.to, file, info.config, average ? kAverage : "");
  fmt::print("{}, step {}: {} parameters{} -> {}\n", printable(from.string()), info.step,
             parameter_count(info.config),
             density_of(info.config) < 1 ? ", and zeros where weights were pruned" : "",
             printable(s.to));
  return 0;
}

}  // namespace ebb
