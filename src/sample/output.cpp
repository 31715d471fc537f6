#include "sample/output.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/image.h"
#include "formats/npy.h"
#include "formats/npz.h"
#include "sample/draw.h"
#include "sample/font.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

// Rows are classes, as long as a row is no wider than this.
int64_t grid_columns(const OutputSpec& spec) { return std::min<int64_t>(spec.each, 16); }

// Letters that the longest name needs, up to as many as leave room for pictures.
int64_t name_letters(const OutputSpec& spec) {
  constexpr int64_t kMost = 24;
  int64_t letters = 0;
  for (const std::string& name : spec.names) letters = std::max(letters, glyph_count(name));
  return std::min(letters, kMost);
}

class PictureOutput : public SampleOutput {
 public:
  explicit PictureOutput(const OutputSpec& spec)
      : size_(spec.config.image_size),
        channels_(spec.config.channels),
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
  explicit GridOutput(const OutputSpec& spec)
      : PictureOutput(spec),
        path_(spec.path),
        grid_(spec.count(), grid_columns(spec), size_, static_cast<int>(channels_),
              name_letters(spec)) {
    check_writable(path_);
    const int64_t columns = grid_columns(spec);
    for (int64_t row = 0; !spec.names.empty() && row * columns < spec.count(); ++row) {
      grid_.name_row(row, spec.names[row * columns / spec.each]);
    }
  }
  void finish() override { grid_.write(path_); }

 private:
  void picture(int64_t index, const uint8_t* pixels) override { grid_.put(index, pixels); }
  fs::path path_;
  Grid grid_;
};

class NpzOutput final : public PictureOutput {
 public:
  explicit NpzOutput(const OutputSpec& spec)
      : PictureOutput(spec),
        spec_(spec),
        rgb_(channels_ == 1 ? 3 * size_ * size_ : 0),
        writer_(spec.path, spec.count(), size_, size_, 3) {}
  void finish() override {
    std::vector<int64_t> labels(spec_.count());
    for (int64_t i = 0; i < spec_.count(); ++i) labels[i] = spec_.label(i);
    writer_.finish(labels.data());
  }

 private:
  // Evaluators take three channels alone: gray is repeated.
  void picture(int64_t, const uint8_t* pixels) override {
    for (size_t i = 0; i < rgb_.size(); ++i) rgb_[i] = pixels[i / 3];
    writer_.add(rgb_.empty() ? pixels : rgb_.data(), 1);
  }
  OutputSpec spec_;
  std::vector<uint8_t> rgb_;
  NpzSamplesWriter writer_;
};

class FolderOutput final : public PictureOutput {
 public:
  explicit FolderOutput(const OutputSpec& spec)
      : PictureOutput(spec), spec_(spec), made_(!fs::exists(spec.path)) {
    make_directories(spec.path);
    check_writable(place(0));
    remove_stale_temporaries(spec.path);
  }
  ~FolderOutput() override {
    std::error_code ignored;  // what is not empty stays
    if (made_) fs::remove(spec_.path, ignored);
  }
  void finish() override {}

 private:
  fs::path place(int64_t index) const {
    return spec_.path / fmt::format("{:06}-class{}.png", index, spec_.label(index));
  }
  void picture(int64_t index, const uint8_t* pixels) override {
    write_png(place(index), pixels, size_, size_, static_cast<int>(channels_));
  }
  OutputSpec spec_;
  bool made_;
};

class ValueOutput final : public SampleOutput {
 public:
  explicit ValueOutput(const OutputSpec& spec)
      : each_(spec.config.channels * spec.config.pixels()),
        writer_(spec.real_path(), Shape{spec.count(), spec.config.channels, spec.config.image_size,
                                        spec.config.image_size}) {}
  void take(int64_t, int64_t count, const float* values) override {
    writer_.add(values, count * each_);
  }
  void finish() override { writer_.finish(); }

 private:
  int64_t each_;
  NpyWriter writer_;
};

bool writes_values(const OutputSpec& spec) {
  return !spec.pixels || spec.path.extension() == ".npy";
}

}  // namespace

fs::path OutputSpec::real_path() const {
  fs::path real = path;
  return pixels ? real : real.replace_extension(".npy");
}

int64_t OutputSpec::held_bytes() const {
  if (writes_values(*this)) return 0;
  if (path.extension() == ".png") {
    return Grid::bytes(count(), grid_columns(*this), config.image_size,
                       static_cast<int>(config.channels), name_letters(*this));
  }
  if (path.extension() != ".npz") return 0;
  const int64_t rgb = config.channels == 1 ? 3 * config.pixels() : 0;
  return count() * static_cast<int64_t>(sizeof(int64_t)) + rgb;
}

void name_classes(OutputSpec& spec, const std::vector<std::string>& names) {
  spec.names.clear();
  for (const int32_t label : spec.classes) {
    if (spec.config.classes == 0 || label >= std::ssize(names)) return spec.names.clear();
    spec.names.push_back(names[label]);
  }
}

std::unique_ptr<SampleOutput> make_output(const OutputSpec& spec) {
  if (writes_values(spec)) return std::make_unique<ValueOutput>(spec);
  const std::string extension = spec.path.extension().string();
  if (spec.config.channels != 1 && spec.config.channels != 3) {
    fail(Exit::usage, fmt::format("--out: {} channels are not a picture", spec.config.channels),
         "use --out FILE.npy");
  }
  if (extension == ".png") return std::make_unique<GridOutput>(spec);
  if (extension == ".npz") return std::make_unique<NpzOutput>(spec);
  if (!extension.empty() && !fs::is_directory(spec.path)) {
    fail(Exit::usage,
         fmt::format("--out: found '{}', and {} is no kind of file that is written",
                     printable(spec.path.string()), printable(extension)),
         "wanted a grid .png, a set .npz, raw values .npy, or a folder");
  }
  return std::make_unique<FolderOutput>(spec);
}

}  // namespace ebb
