#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"
#include "formats/image.h"
#include "formats/npy.h"
#include "formats/npz.h"
#include "kernels/cpu/device.h"
#include "run/arena.h"
#include "sample/draw.h"
#include "train/budget.h"
#include "train/checkpoint.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

fs::path checkpoint_of(const std::string& from) {
  if (!fs::exists(from)) {
    fail(Exit::disk, fmt::format("--from: {} does not exist", from), "give a run's folder");
  }
  if (!fs::is_directory(from)) return from;
  if (const auto newest = newest_checkpoint(from)) return *newest;
  fail(Exit::disk, fmt::format("--from: no checkpoint in {}", (fs::path(from) / "checkpoints").string()),
       "train with --save-every, or give the checkpoint's file");
}

std::vector<int32_t> labels_of(const Settings& s, const DitConfig& config) {
  std::vector<int32_t> classes;
  if (!s.sample_classes.empty()) {
    for (const std::string& word : split(s.sample_classes, ',')) {
      const int64_t value = parse_int(word, "--classes");
      if (value < 0 || value >= config.classes) {
        fail(Exit::usage, fmt::format("--classes: found {}, but the model has {} classes", value,
                                      config.classes),
             config.classes > 0 ? fmt::format("wanted 0 to {}", config.classes - 1)
                                : "leave --classes out");
      }
      classes.push_back(static_cast<int32_t>(value));
    }
  } else {
    for (int64_t c = 0; c < std::max<int64_t>(1, config.classes); ++c) {
      classes.push_back(static_cast<int32_t>(c));
    }
  }
  std::vector<int32_t> labels;
  for (const int32_t c : classes) labels.insert(labels.end(), s.count, c);
  return labels;
}

// Where samples go: each kind of output takes them as they come.
class Output {
 public:
  virtual ~Output() = default;
  virtual void take(int64_t first, int64_t count, const float* values) = 0;
  virtual void finish() = 0;
};

class PictureOutput : public Output {
 public:
  explicit PictureOutput(const DitConfig& c) : size_(c.image_size), channels_(c.channels),
        picture_(size_ * size_ * channels_) {}
  void take(int64_t first, int64_t count, const float* values) override {
    const int64_t each = channels_ * size_ * size_;
    for (int64_t i = 0; i < count; ++i) {
      to_pixels(picture_.data(), values + i * each, channels_, size_);
      picture(first + i, picture_.data());
    }
  }

 protected:
  virtual void picture(int64_t index, const uint8_t* pixels) = 0;
  int64_t size_, channels_;
  std::vector<uint8_t> picture_;
};

class GridOutput final : public PictureOutput {
 public:
  GridOutput(const DitConfig& c, fs::path path, int64_t count, int64_t columns)
      : PictureOutput(c), path_(std::move(path)),
        grid_(count, columns, size_, static_cast<int>(channels_)) {}
  void finish() override { grid_.write(path_); }

 private:
  void picture(int64_t index, const uint8_t* pixels) override { grid_.put(index, pixels); }
  fs::path path_;
  Grid grid_;
};

class NpzOutput final : public PictureOutput {
 public:
  NpzOutput(const DitConfig& c, const fs::path& path, const std::vector<int32_t>& labels)
      : PictureOutput(c), labels_(labels.begin(), labels.end()),
        writer_(path, static_cast<int64_t>(labels.size()), size_, size_, channels_) {}
  void finish() override { writer_.finish(labels_.data()); }

 private:
  void picture(int64_t, const uint8_t* pixels) override { writer_.add(pixels, 1); }
  std::vector<int64_t> labels_;
  NpzSamplesWriter writer_;
};

class FolderOutput final : public PictureOutput {
 public:
  FolderOutput(const DitConfig& c, fs::path folder, const std::vector<int32_t>& labels)
      : PictureOutput(c), folder_(std::move(folder)), labels_(labels) {
    make_directories(folder_);
  }
  void finish() override {}

 private:
  void picture(int64_t index, const uint8_t* pixels) override {
    write_png(folder_ / fmt::format("{:06}-class{}.png", index, labels_[index]), pixels, size_,
              size_, static_cast<int>(channels_));
  }
  fs::path folder_;
  const std::vector<int32_t>& labels_;
};

class LatentOutput final : public Output {
 public:
  LatentOutput(const DitConfig& c, fs::path path, int64_t count)
      : path_(std::move(path)), shape_({count, c.channels, c.image_size, c.image_size}),
        values_(element_count(shape_)) {}
  void take(int64_t first, int64_t count, const float* values) override {
    const int64_t each = element_count(shape_) / shape_[0];
    std::copy_n(values, count * each, values_.begin() + first * each);
  }
  void finish() override { write_npy(path_, values_.data(), shape_); }

 private:
  fs::path path_;
  Shape shape_;
  std::vector<float> values_;
};

std::unique_ptr<Output> make_output(const Settings& s, const DitConfig& c, bool pixels,
                                    const std::vector<int32_t>& labels) {
  const fs::path path = s.out;
  const auto count = static_cast<int64_t>(labels.size());
  const std::string extension = path.extension().string();
  if (!pixels || extension == ".npy") {
    fs::path latents = path;
    if (!pixels) {
      latents.replace_extension(".npy");
      fmt::print("the model draws latents and has no decoder: writing {}\n", latents.string());
    }
    return std::make_unique<LatentOutput>(c, latents, count);
  }
  if (c.channels != 1 && c.channels != 3) {
    fail(Exit::usage, fmt::format("--out: {} channels are not a picture", c.channels),
         "use --out FILE.npy");
  }
  if (extension == ".png") {
    const int64_t columns = std::min<int64_t>(s.count, 16);
    return std::make_unique<GridOutput>(c, path, count, columns);
  }
  if (extension == ".npz") return std::make_unique<NpzOutput>(c, path, labels);
  if (!extension.empty() && !fs::is_directory(path)) {
    fail(Exit::usage, fmt::format("--out: '{}' is not .png, .npz, .npy or a folder", s.out));
  }
  return std::make_unique<FolderOutput>(c, path, labels);
}

struct Planned {
  SamplerSpec spec;
  PlanSet plans;
};

// The largest batch, halving from --batch or 64, that the budget holds.
Planned plan_sampler(const Settings& s, const DitConfig& config, SamplerSpec spec, int64_t count,
                     const std::string& name) {
  const int64_t budget = resolve_budget(s);
  spec.batch = std::min<int64_t>(count, s.sample_batch > 0 ? s.sample_batch : 64);
  while (true) {
    auto programs = sampler_programs(config, spec, cpu_device());
    const int64_t outside = measure_outside_bytes(programs);
    Planned made{spec, make_plans(std::move(programs))};
    const bool last = spec.batch == 1 || s.sample_batch > 0;
    if (last || made.plans.arena_bytes + outside <= budget) {
      check_budget(made.plans.arena_bytes, outside, budget,
                   fmt::format("sampling with {} at batch {}", name, spec.batch),
                   "give a larger --memory or a smaller --batch");
      return made;
    }
    spec.batch /= 2;
  }
}

}  // namespace

int run_sample(Settings s) {
  need(s, "from");
  need(s, "out");
  resolve_threads(s);
  const SafetensorsReader file(checkpoint_of(s.from));
  const CheckpointInfo info = read_info(file);
  SamplerSpec spec = resolve_sampler(s, info.config, info.pixels);
  if (s.weights == "raw") spec.weights_prefix = "";
  const std::vector<int32_t> labels = labels_of(s, info.config);
  const auto count = static_cast<int64_t>(labels.size());
  const Planned planned =
      plan_sampler(s, info.config, spec, count, model_label(s, info.config));
  const auto output = make_output(s, info.config, info.pixels, labels);
  const Arena arena(planned.plans.arena_bytes);
  load_state(file, planned.plans.plans[1], arena.data(), info.config);
  fmt::print("{} samples after step {}, {} weights, {} {} steps, guidance {}\n", count, info.step,
             s.weights, sampler_name(spec.kind), spec.steps, spec.guidance);
  Drawer drawer(planned.plans.plans[0], planned.plans.plans[1], planned.spec, info.config,
                cpu_device(), arena.data());
  drawer.draw(labels, static_cast<uint64_t>(s.seed),
              [&](int64_t first, int64_t n, const float* values) { output->take(first, n, values); });
  output->finish();
  fmt::print("wrote {}\n", s.out);
  return 0;
}

}  // namespace ebb
