// Checkpoints of any shape, with numbers that depend on their names and places alone: for the tests
// of pruning.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "model/optimizer.h"
#include "model/step.h"
#include "state/checkpoint.h"

namespace ebb {

inline DitConfig prunable_config(int64_t depth = 3, int64_t heads = 4, int64_t width = 32) {
  DitConfig c;
  c.width = width;
  c.patch = 2;
  c.image_size = 8;
  c.channels = 1;
  c.classes = 3;
  set_blocks(c, depth, heads);
  return c;
}

// Number i of a tensor: in (-0.5, 0.5), of moments never negative.
inline float value_of(const std::string& name, int64_t i) {
  uint64_t x = std::hash<std::string>()(name) + 0x9E3779B97F4A7C15u * static_cast<uint64_t>(i + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  const float value = static_cast<float>(x >> 40) * 0x1p-24f - 0.5f;
  return name.starts_with("v") ? std::abs(value) * 1e-3f : value * 0.1f;
}

inline CheckpointInfo info_of(const DitConfig& config, Optimizer optimizer = Optimizer::adamw) {
  CheckpointInfo info;
  info.step = 12;
  info.samples = 48;
  info.seed = 7;
  info.config = config;
  info.pixels = true;
  info.settings = "# a run\nwidth = 32\ndepth = 3\nlr = 0.1\n";
  info.optimizer = optimizers()[static_cast<size_t>(optimizer)].name;
  info.storage = "fp32";
  info.updates = 11;
  info.loss_scale = 1024;
  info.clean_steps = 3;
  info.data = {"images", 9, "0f", {"a", "b", "c"}, {2, 3, 4}};
  info.average_start = 0.25;
  return info;
}

struct Written {
  CheckpointInfo info;
  bool moments = true, average = true;
  // Another value for number i of a tensor.
  std::function<float(const std::string& name, int64_t i)> value = value_of;
  std::map<std::string, std::string> besides = {};  // of metadata
};

// As `ebb train` writes it, part by part.
inline void write_checkpoint(const std::filesystem::path& path, const Written& w) {
  StepSpec step;
  for (size_t i = 0; i < optimizers().size(); ++i) {
    if (w.info.optimizer == optimizers()[i].name) step.optimizer = static_cast<Optimizer>(i);
  }
  step.ema = w.average;
  std::vector<TensorData> tensors;
  for (const ParamSpec& param : parameters(w.info.config)) {
    for (const StateBuffer& b : state_of(param, step, {})) {
      if (b.purpose == Purpose::moment && !w.moments) continue;
      const std::string name = b.prefix + param.name;
      tensors.push_back({name, TensorType::F32, b.shape, nullptr,
                         [&w, name](int64_t offset, void* out, int64_t bytes) {
                           for (int64_t i = 0; i < bytes / 4; ++i) {
                             const float value = w.value(name, offset / 4 + i);
                             std::memcpy(static_cast<char*>(out) + 4 * i, &value, 4);
                           }
                         }});
    }
  }
  std::map<std::string, std::string> metadata = checkpoint_metadata(w.info);
  for (const auto& [key, value] : w.besides) metadata[key] = value;
  write_safetensors(path, tensors, metadata, true);
}

inline std::vector<float> numbers(const SafetensorsReader& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  if (entry == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(entry->count()));
  file.read_f32(*entry, values.data(), entry->count());
  return values;
}

}  // namespace ebb
