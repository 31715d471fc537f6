#include "train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/model_json.h"

namespace ebb {

namespace {

constexpr const char* kFormat = "1";

bool is_state(const Buffer& buffer) {
  return buffer.resident && (buffer.purpose == Purpose::weight ||
                             buffer.purpose == Purpose::moment || buffer.purpose == Purpose::ema);
}

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
         "give a file of runs/NAME/checkpoints/, or use it with --weights");
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
                     const Plan& plan, const std::byte* arena) {
  std::vector<TensorData> tensors;
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Buffer& buffer = plan.program.buffers[i];
    if (!is_state(buffer)) continue;
    tensors.push_back({buffer.name, TensorType::F32, buffer.shape, arena + plan.offsets[i]});
  }
  make_directories(path.parent_path());
  write_safetensors(path, tensors,
                    {{"ebb.format", kFormat},
                     {kModelKey, model_to_json(info.config)},
                     {"ebb.step", std::to_string(info.step)},
                     {"ebb.samples", std::to_string(info.samples)},
                     {"ebb.seed", std::to_string(info.seed)},
                     {"ebb.pixels", info.pixels ? "true" : "false"},
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
  return info;
}

void load_state(const SafetensorsReader& file, const Plan& plan, std::byte* arena,
                const DitConfig& config) {
  const std::string where = file.path().string();
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Buffer& buffer = plan.program.buffers[i];
    if (!is_state(buffer)) continue;
    auto* values = reinterpret_cast<float*>(arena + plan.offsets[i]);
    const TensorEntry* entry = file.find(buffer.name);
    if (entry == nullptr) {
      if (buffer.name == "pos_embed") {
        initialise(values, {buffer.name, buffer.layer, buffer.shape, Init::positions}, 0, config);
        continue;
      }
      fail(Exit::disk, fmt::format("{}: no tensor {}", where, buffer.name),
           buffer.purpose == Purpose::ema ? "a file without EMA needs --weights raw"
                                          : "the file is of another model");
    }
    if (entry->shape != buffer.shape) {
      fail(Exit::disk,
           fmt::format("{}: {} has shape {}, wanted {}", where, buffer.name,
                       shape_text(entry->shape), shape_text(buffer.shape)),
           "the file is of another model");
    }
    file.read_f32(*entry, values, buffer.count());
  }
}

DitConfig model_of(const SafetensorsReader& file, const DitConfig& given, bool heads_given) {
  const std::string where = file.path().string();
  if (const auto found = file.metadata().find(kModelKey); found != file.metadata().end()) {
    return model_from_json(found->second, where, Exit::disk);
  }
  const auto shape = [&](const std::string& name, size_t rank) -> const Shape& {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr || entry->shape.size() != rank || entry->count() == 0) {
      fail(Exit::disk, fmt::format("{}: no tensor {} of {} dimensions", where, name, rank),
           "wanted a DiT under the reference's tensor names");
    }
    return entry->shape;
  };
  DitConfig c = given;
  const Shape& patch = shape("x_embedder.proj.weight", 4);
  c.width = patch[0];
  c.channels = patch[1];
  c.patch = patch[2];
  c.classes = 0;
  if (file.find("y_embedder.embedding_table.weight") != nullptr) {
    c.classes = shape("y_embedder.embedding_table.weight", 2)[0] - 1;
  }
  const int64_t out = shape("final_layer.linear.weight", 2)[0];
  c.learn_sigma = out == 2 * c.channels * c.patch * c.patch;
  if (file.find("pos_embed") != nullptr) {
    const auto grid = static_cast<int64_t>(
        std::llround(std::sqrt(static_cast<double>(shape("pos_embed", 3)[1]))));
    c.image_size = grid * c.patch;
  }
  int64_t depth = 0;
  while (file.find(fmt::format("blocks.{}.attn.qkv.weight", depth)) != nullptr) ++depth;
  if (!heads_given) {
    // The named sizes have heads of 64, but for XL's 72; nothing else can be told from the tensors.
    const bool xl = c.width == 1152 && depth == 28;
    if (!xl && !(c.width == 384 || c.width == 768 || c.width == 1024)) {
      fail(Exit::disk, fmt::format("{}: the number of heads is not in the file", where),
           "give --heads");
    }
    set_blocks(c, depth, xl ? 16 : c.width / 64);
  } else {
    set_blocks(c, depth, given.width / given.head_width);
  }
  return c;
}

}  // namespace ebb
