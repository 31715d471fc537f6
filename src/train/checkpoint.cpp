#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/model_json.h"
#include "train/weights_model.h"

namespace ebb {

namespace {

constexpr const char* kFormat = "1";

std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& run) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step-", 0) == 0 && entry.path().extension() == ".safetensors") {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());  // names are zero-padded: by step
  return found;
}

std::string field(const SafetensorsReader& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    fail(Exit::disk,
         fmt::format("{}: no {} in its metadata: not a checkpoint of Ebb", file.path().string(),
                     key),
         "wanted a run's folder or a file of its checkpoints/, as `ebb train` writes them; weights "
         "alone are for `ebb grad`");
  }
  return found->second;
}

int64_t count_field(const SafetensorsReader& file, const char* key) {
  int64_t value = -1;
  try {
    value = parse_int(field(file, key), key);
  } catch (const Error& e) {
    fail(Exit::disk, fmt::format("{}: {}", file.path().string(), e.what()));
  }
  if (value < 0) fail(Exit::disk, fmt::format("{}: {} is negative", file.path().string(), key));
  return value;
}

// 0, or a power of two that fp32 holds: anything else would not come off a gradient exactly.
double parse_scale(const SafetensorsReader& file) {
  double scale = -1;
  try {
    scale = parse_real(field(file, "ebb.loss_scale"), "ebb.loss_scale");
  } catch (const Error& e) {
    fail(Exit::disk, fmt::format("{}: {}", file.path().string(), e.what()));
  }
  int exponent = 0;
  const bool power = std::frexp(scale, &exponent) == 0.5 && std::abs(exponent) < 100;
  if (scale != 0 && !power) {
    fail(Exit::disk, fmt::format("{}: found ebb.loss_scale {}, wanted 0 or a power of two",
                                 file.path().string(), scale));
  }
  return scale;
}

}  // namespace

std::filesystem::path checkpoint_path(const std::filesystem::path& run, int64_t step) {
  return run / "checkpoints" / fmt::format("step-{:09}.safetensors", step);
}

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run) {
  const auto found = checkpoints_of(run);
  if (found.empty()) return std::nullopt;
  return found.back();
}

void save_checkpoint(const std::filesystem::path& path, const CheckpointInfo& info,
                     const State& state) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  static_assert(kTensorPart % (kMomentBlock * kSize) == 0);
  std::vector<TensorData> tensors;
  for (const StateTensor& tensor : state.tensors()) {
    TensorData data{tensor.name, TensorType::F32, tensor.shape, nullptr};
    if (state.is_whole(tensor)) {
      data.data = state.whole(tensor);
    } else {
      data.read = [&state, &tensor](int64_t offset, void* out, int64_t bytes) {
        state.read(tensor, offset / kSize, static_cast<float*>(out), bytes / kSize);
      };
    }
    tensors.push_back(std::move(data));
  }
  make_directories(path.parent_path());
  write_safetensors(path, tensors,
                    {{"ebb.format", kFormat},
                     {kModelKey, model_to_json(info.config)},
                     {"ebb.step", std::to_string(info.step)},
                     {"ebb.samples", std::to_string(info.samples)},
                     {"ebb.seed", std::to_string(info.seed)},
                     {"ebb.pixels", info.pixels ? "true" : "false"},
                     {"ebb.storage", info.storage},
                     {"ebb.updates", std::to_string(info.updates)},
                     {"ebb.loss_scale", fmt::format("{}", info.loss_scale)},
                     {"ebb.clean_steps", std::to_string(info.clean_steps)},
                     {"ebb.settings", info.settings}},
                    true);
}

void prune_checkpoints(const std::filesystem::path& run, int64_t keep) {
  const auto found = checkpoints_of(run);
  if (keep <= 0) return;
  for (size_t i = 0; i + keep < found.size(); ++i) {
    std::error_code ignored;  // an old checkpoint that stays is no reason to stop a run
    std::filesystem::remove(found[i], ignored);
  }
}

CheckpointInfo read_info(const SafetensorsReader& file) {
  const std::string where = file.path().string();
  if (const std::string format = field(file, "ebb.format"); format != kFormat) {
    fail(Exit::disk,
         fmt::format("{}: checkpoint format '{}', wanted {}", where, printable(format), kFormat));
  }
  CheckpointInfo info;
  info.config = model_from_json(field(file, kModelKey), where, Exit::disk);
  info.step = count_field(file, "ebb.step");
  info.samples = count_field(file, "ebb.samples");
  info.seed = static_cast<uint64_t>(count_field(file, "ebb.seed"));
  info.pixels = field(file, "ebb.pixels") == "true";
  info.settings = field(file, "ebb.settings");
  info.updates = info.step;
  if (file.metadata().count("ebb.storage") == 0) return info;  // of a version that had fp32 alone
  info.storage = field(file, "ebb.storage");
  info.updates = count_field(file, "ebb.updates");
  info.clean_steps = count_field(file, "ebb.clean_steps");
  info.loss_scale = parse_scale(file);
  return info;
}

void load_state(const SafetensorsReader& file, State& state, const DitConfig& config) {
  const std::string where = file.path().string();
  refuse_unknown_tensors(file, config);
  for (const StateTensor& tensor : state.tensors()) {
    const TensorEntry* entry = file.find(tensor.name);
    if (entry == nullptr) {
      if (tensor.name == kPositionTable) {
        initialise(state.whole(tensor), {tensor.name, tensor.layer, tensor.shape, Init::positions},
                   0, config);
        continue;
      }
      fail(Exit::disk, fmt::format("{}: no tensor {}", where, tensor.name),
           tensor.purpose == Purpose::ema ? "a file without EMA needs --weights raw"
                                          : "the file is of another model");
    }
    if (entry->shape != tensor.shape) {
      fail(Exit::disk,
           fmt::format("{}: {} has shape {}, wanted {}", where, tensor.name,
                       shape_text(entry->shape), shape_text(tensor.shape)),
           "the file is of another model");
    }
    state.fill(tensor, [&](float* values, int64_t first, int64_t count) {
      file.read_f32_part(*entry, first, values, count);
    });
  }
}

}  // namespace ebb
