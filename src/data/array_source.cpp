#include "data/array_source.h"

#include <algorithm>

#include "base/error.h"
#include "data/fingerprint.h"
#include "data/kinds.h"
#include "formats/image.h"

namespace ebb {

namespace {

// Elements of T: pixels as they are in pictures, or values as the network sees them.
template <typename T>
class ArraySource final : public Source {
 public:
  static constexpr bool kPixels = std::is_same_v<T, uint8_t>;

  ArraySource(std::span<const T> samples, std::span<const int32_t> labels, int64_t size,
              int64_t channels)
      : samples_(samples), labels_(labels) {
    info_.kind = "arrays";
    info_.pixels = kPixels;
    info_.type = kPixels ? DType::u8 : DType::f32;
    info_.channels = channels;
    info_.height = info_.width = size;
    check_sizes();
    info_.count = std::ssize(samples) / sample_values();
    check_labels();
    Fingerprint print(info_.kind);
    for (const int64_t each : {info_.count, channels, size}) print.add(each);
    print.add(std::as_bytes(labels));
    print.add(std::as_bytes(samples));
    info_.fingerprint = print.hex();
  }

  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> /*scratch*/) const override {
    const T* from = samples_.data() + index * sample_values();
    auto* to = reinterpret_cast<T*>(values);
    *label = this->label(index);
    // What pictures have as their last dimension, the network has as its first.
    const int64_t C = kPixels ? info_.channels : 1, plane = sample_values() / C;
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t i = 0; i < plane; ++i) to[c * plane + i] = from[i * C + c];
    }
  }

  int32_t label(int64_t index) const override { return labels_.empty() ? 0 : labels_[index]; }
  int64_t scratch_bytes() const override { return 0; }
  int64_t heap_bytes() const override { return 0; }
  int64_t held_bytes() const override {
    return static_cast<int64_t>(samples_.size_bytes() + labels_.size_bytes());
  }

 private:
  void check_sizes() const {
    const int64_t size = info_.height, channels = info_.channels;
    constexpr int64_t kMostChannels = 1024;
    if (size < 1 || size > kMaxImageSide) {
      fail(Exit::data, fmt::format("data: found a size of {}, wanted 1 to {}", size, kMaxImageSide),
           "it is the side of a square sample");
    }
    const bool known = kPixels ? channels == 1 || channels == 3 : channels >= 1;
    if (!known || channels > kMostChannels) {
      fail(Exit::data,
           fmt::format("data: found {} channels, wanted {}", channels,
                       kPixels ? "1 or 3 for pixels" : "1 to 1024"),
           kPixels ? "other kinds of samples are values" : "");
    }
    if (samples_.empty() || std::ssize(samples_) % sample_values() != 0) {
      fail(Exit::data,
           fmt::format("data: found an array of {} elements, wanted a multiple of {}: samples of "
                       "{} x {} with {} channels",
                       samples_.size(), sample_values(), size, size, channels),
           "check the size and the channels that are said of it");
    }
  }

  void check_labels() {
    if (labels_.empty()) return;
    if (std::ssize(labels_) != info_.count) {
      fail(Exit::data,
           fmt::format("data: found {} labels, wanted {}, one for each sample", labels_.size(),
                       info_.count),
           "give none to train without classes");
    }
    for (size_t i = 0; i < labels_.size(); ++i) {
      if (labels_[i] >= 0 && labels_[i] < kMaxClasses) continue;
      fail(Exit::data,
           fmt::format("data: sample {}: found label {}, wanted 0 to {}", i, labels_[i],
                       kMaxClasses - 1),
           "number the classes from 0 on");
    }
    info_.classes = *std::max_element(labels_.begin(), labels_.end()) + 1;
    for (const int32_t label : labels_) count_class(label);
  }

  std::span<const T> samples_;
  std::span<const int32_t> labels_;
};

}  // namespace

std::unique_ptr<Source> pixel_source(std::span<const uint8_t> pixels,
                                     std::span<const int32_t> labels, int64_t size,
                                     int64_t channels) {
  return std::make_unique<ArraySource<uint8_t>>(pixels, labels, size, channels);
}

std::unique_ptr<Source> value_source(std::span<const float> values, std::span<const int32_t> labels,
                                     int64_t size, int64_t channels) {
  return std::make_unique<ArraySource<float>>(values, labels, size, channels);
}

}  // namespace ebb
