// Features extracted before training, as fast-DiT writes them: one .npy file a sample.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/float16.h"
#include "data/fingerprint.h"
#include "data/kinds.h"
#include "formats/image.h"
#include "formats/npy.h"

namespace ebb {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kVerifyValues = int64_t{1} << 28;  // more are not read on opening
constexpr size_t kIdentityBytes = 1024;              // of each file, read along with its header

// "17.npy" -> 17; -1 for every other name.
int64_t index_of(const fs::path& path) {
  const std::string stem = path.stem().string();
  int64_t index = -1;
  const auto [end, ec] = std::from_chars(stem.data(), stem.data() + stem.size(), index);
  const bool plain = ec == std::errc() && end == stem.data() + stem.size() && index >= 0 &&
                     std::to_string(index) == stem;
  return plain && path.extension() == ".npy" ? index : -1;
}

fs::path file_of(const fs::path& folder, int64_t index) {
  return folder / fmt::format("{}.npy", index);
}

class FeaturesSource final : public Source {
 public:
  FeaturesSource(fs::path features, const fs::path& labels, const SourceOptions& options)
      : folder_(std::move(features)) {
    info_.kind = "features";
    info_.count = count_files(options.memory_limit);
    read_shape(options);
    if (labels.empty()) {
      info_.notes.push_back(fmt::format(
          "{}: no folder of labels beside it; training without classes", shown(folder_)));
    } else {
      read_labels(labels);
    }
    check_files();
    const bool little =
        info_.count <= kVerifyFiles && sample_values() <= kVerifyValues / info_.count;
    if (options.verify && little) {
      std::vector<std::byte> values(static_cast<size_t>(sample_bytes()));
      int32_t label = 0;
      for (int64_t i = 0; i < info_.count; ++i) load(values.data(), &label, i, {});
    }
  }

  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> /*scratch*/) const override {
    require(index >= 0 && index < info_.count, "features: sample {} of {}", index, info_.count);
    NpyFile file(file_of(folder_, index));
    check_shape(file, index);
    if (info_.type == DType::f16) {
      auto* x = reinterpret_cast<F16*>(values);
      file.read_halves(x);
      check_finite(x, index);
    } else {
      auto* x = reinterpret_cast<float*>(values);
      file.read(x);
      check_finite(x, index);
    }
    *label = this->label(index);
  }

  int32_t label(int64_t index) const override {
    return labels_.empty() ? 0 : labels_[static_cast<size_t>(index)];
  }
  std::string name(int64_t index) const override { return shown(file_of(folder_, index)); }
  int64_t scratch_bytes() const override { return 0; }
  int64_t heap_bytes() const override { return int64_t{16} << 10; }  // a FILE and its buffer
  int64_t held_bytes() const override {
    return std::ssize(labels_) * static_cast<int64_t>(sizeof(int32_t));
  }

 private:
  template <typename Value>
  void check_finite(const Value* x, int64_t index) const {
    const Value* end = x + sample_values();
    const Value* bad =
        std::find_if(x, end, [](Value value) { return !std::isfinite(static_cast<float>(value)); });
    if (bad == end) return;
    const int64_t at = bad - x;
    const int64_t plane = info_.height * info_.width;
    fail(Exit::data,
         fmt::format("{}: found {} at channel {}, row {}, column {}, wanted finite numbers",
                     shown(file_of(folder_, index)), static_cast<float>(*bad), at / plane,
                     at % plane / info_.width, at % info_.width),
         "extract this sample's features again");
  }

  // The names must be exactly 0 .. N-1.
  int64_t count_files(int64_t memory_limit) {
    int64_t count = 0, others = 0;
    each_entry(folder_, [&](const fs::directory_entry& entry) {
      if (index_of(entry.path()) >= 0) {
        ++count;
      } else if (entry.path().extension() == ".npy") {
        ++others;
      }
    });
    if (count > memory_limit / static_cast<int64_t>(sizeof(int32_t))) {
      fail(Exit::data, fmt::format("{}: found {} files, too many for the memory allowed",
                                   shown(folder_), count));
    }
    std::vector<bool> seen(static_cast<size_t>(count));
    each_entry(folder_, [&](const fs::directory_entry& entry) {
      const int64_t index = index_of(entry.path());
      if (index >= 0 && index < count) seen[static_cast<size_t>(index)] = true;
    });
    const auto missing = std::find(seen.begin(), seen.end(), false);
    if (count == 0 || missing != seen.end()) {
      fail(Exit::data,
           fmt::format("{}: found {} numbered .npy files but no {}.npy, wanted 0.npy, 1.npy and so "
                       "on without a gap",
                       shown(folder_), count, missing - seen.begin()),
           "extract the features again, or number the files from 0");
    }
    if (others > 0) {
      info_.notes.push_back(fmt::format("{}: ignored {} .npy file{} without a number for a name",
                                        shown(folder_), others, others == 1 ? "" : "s"));
    }
    return count;
  }

  void read_shape(const SourceOptions& options) {
    const fs::path path = file_of(folder_, 0);
    const NpyFile file(path);
    std::span<const int64_t> shape = file.header().shape();
    if (shape.size() == 4 && shape[0] == 1) shape = shape.subspan(1);
    if (shape.size() != 3 || file.header().count < 1 || file.header().count > kMaxImagePixels ||
        file.header().count > options.memory_limit / static_cast<int64_t>(sizeof(float))) {
      fail(Exit::data,
           fmt::format("{}: found shape {}, wanted (C, H, W) or (1, C, H, W) of a size that fits "
                       "in memory",
                       shown(path), format_shape(file.header().shape())),
           "each file holds one sample");
    }
    info_.channels = shape[0];
    info_.height = shape[1];
    info_.width = shape[2];
    check_type(file, path);
    if (options.channels != 0 && options.channels != info_.channels) {
      fail(Exit::data,
           fmt::format("{}: found {} channels, wanted {} as --channels says", shown(path),
                       info_.channels, options.channels),
           "leave out --channels: it is read from the features");
    }
    if (options.image_size != 0 &&
        (options.image_size != info_.height || options.image_size != info_.width)) {
      fail(Exit::data,
           fmt::format("{}: found features of {}x{}, wanted {} as --image-size says", shown(path),
                       info_.height, info_.width, options.image_size),
           "leave out --image-size: it is read from the features, which cannot be scaled");
    }
  }

  // Files of features all have one size, so the fingerprint takes the start of their values too.
  // Where all of them are of 16 bits, samples are.
  void check_files() {
    info_.type = DType::f16;
    Fingerprint print(info_.kind);
    for (const int64_t size : {info_.count, info_.channels, info_.height, info_.width}) {
      print.add(size);
    }
    std::array<std::byte, kIdentityBytes> start;
    for (int64_t i = 0; i < info_.count; ++i) {
      NpyFile file(file_of(folder_, i));
      check_shape(file, i);
      if (file.header().type != NpyType::f2) info_.type = DType::f32;
      print.add(std::span<const std::byte>(start.data(), file.read_start(start)));
    }
    for (const int32_t label : labels_) count_class(label);
    print.add(std::as_bytes(std::span(labels_)));
    info_.fingerprint = print.hex();
  }

  static void check_type(const NpyFile& file, const fs::path& path) {
    const NpyType type = file.header().type;
    if (type == NpyType::f2 || type == NpyType::f4 || type == NpyType::f8) return;
    fail(Exit::data, fmt::format("{}: found whole numbers, wanted floats (<f4)", shown(path)),
         "pixels belong into image files; features are floats");
  }

  void check_shape(const NpyFile& file, int64_t index) const {
    std::span<const int64_t> shape = file.header().shape();
    if (shape.size() == 4 && shape[0] == 1) shape = shape.subspan(1);
    if (shape.size() != 3 || shape[0] != info_.channels || shape[1] != info_.height ||
        shape[2] != info_.width) {
      const int64_t wanted[] = {info_.channels, info_.height, info_.width};
      fail(Exit::data,
           fmt::format("{}: found shape {}, wanted {} as in {}", shown(file_of(folder_, index)),
                       format_shape(file.header().shape()), format_shape(wanted),
                       shown(file_of(folder_, 0))),
           "extract all features at one image size");
    }
    check_type(file, file_of(folder_, index));
  }

  void read_labels(const fs::path& folder) {
    labels_.resize(static_cast<size_t>(info_.count));
    for (int64_t i = 0; i < info_.count; ++i) {
      const fs::path path = file_of(folder, i);
      std::error_code ignored;
      if (!fs::exists(path, ignored)) {
        fail(Exit::data,
             fmt::format("{}: found no such label, wanted one for {}", shown(path),
                         shown(file_of(folder_, i))),
             "every file of features needs the file of its label; without the whole labels folder "
             "training has no classes");
      }
      NpyFile file(path);
      if (file.header().count != 1) {
        fail(Exit::data, fmt::format("{}: found shape {}, wanted (1,): one label", shown(path),
                                     format_shape(file.header().shape())));
      }
      int64_t label = 0;
      file.read(&label);
      if (label < 0 || label > kMaxClasses) {
        fail(Exit::data,
             fmt::format("{}: found label {}, wanted 0 to {}", shown(path), label, kMaxClasses),
             "number the classes from 0");
      }
      labels_[static_cast<size_t>(i)] = static_cast<int32_t>(label);
      info_.classes = std::max(info_.classes, label + 1);
    }
  }

  fs::path folder_;
  std::vector<int32_t> labels_;
};

}  // namespace

std::unique_ptr<Source> open_features(const fs::path& features, const fs::path& labels,
                                      const SourceOptions& options) {
  return std::make_unique<FeaturesSource>(features, labels, options);
}

}  // namespace ebb
