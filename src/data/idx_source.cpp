// MNIST and its relatives. The pixels are held decompressed, a byte each.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "data/fingerprint.h"
#include "data/kinds.h"
#include "data/resize.h"
#include "formats/idx.h"
#include "formats/image.h"

namespace ebb {
namespace fs = std::filesystem;
namespace {

class IdxSource final : public Source {
 public:
  IdxSource(const fs::path& images, const fs::path& labels, const SourceOptions& options) {
    IdxFile file(images, 3);
    info_.kind = "idx";
    info_.pixels = true;
    info_.type = DType::u8;
    info_.count = file.dim(0);
    in_height_ = file.dim(1);
    in_width_ = file.dim(2);
    if (in_height_ > kMaxImageSide || in_width_ > kMaxImageSide) {
      fail(Exit::data, fmt::format("{}: found images of {}x{}, wanted sides of at most {}",
                                   shown(images), in_width_, in_height_, kMaxImageSide));
    }
    if (file.count() > options.memory_limit) {
      fail(Exit::data,
           fmt::format("{}: found {} of pixels, wanted at most {} in memory", shown(images),
                       format_size(file.count()), format_size(options.memory_limit)),
           "raise --memory, or write the images as PNG files, which are read one by one");
    }
    info_.height = options.image_size != 0 ? options.image_size : in_height_;
    info_.width = options.image_size != 0 ? options.image_size : in_width_;
    info_.channels = options.channels != 0 ? options.channels : 1;
    pixels_ = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(file.count()));
    file.read(pixels_.get());
    read_labels(images, labels);
    identify(file.count());
  }

  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> scratch) const override {
    require(index >= 0 && index < info_.count, "idx: sample {} of {}", index, info_.count);
    const uint8_t* image = pixels_.get() + index * in_height_ * in_width_;
    auto* pixels = reinterpret_cast<uint8_t*>(values);
    const int64_t plane = info_.height * info_.width;
    if (scaled()) {
      Resizer resizer(pixels, resize_shape(), false, scratch);
      for (int64_t y = 0; y < in_height_; ++y) resizer.add_row(image + y * in_width_);
    } else {
      std::copy_n(image, plane, pixels);
    }
    for (int64_t c = 1; c < info_.channels; ++c) std::copy_n(pixels, plane, pixels + c * plane);
    *label = this->label(index);
  }

  int32_t label(int64_t index) const override {
    return labels_.empty() ? 0 : labels_[static_cast<size_t>(index)];
  }
  int64_t scratch_bytes() const override {
    return scaled() ? Resizer::scratch_bytes(resize_shape()) : 0;
  }
  int64_t heap_bytes() const override { return 0; }
  int64_t held_bytes() const override {
    return info_.count * in_height_ * in_width_ + std::ssize(labels_);
  }

 private:
  bool scaled() const { return info_.height != in_height_ || info_.width != in_width_; }
  Resizer::Shape resize_shape() const {
    return {in_height_, in_width_, info_.height, info_.width, 1};
  }

  void read_labels(const fs::path& images, const fs::path& labels) {
    if (labels.empty()) {
      info_.notes.push_back(
          fmt::format("{}: no labels file beside it; training without classes", shown(images)));
      return;
    }
    IdxFile file(labels, 1);
    if (file.count() != info_.count) {
      fail(Exit::data,
           fmt::format("{}: found {} labels, wanted {}, one for each image of {}", shown(labels),
                       file.count(), info_.count, shown(images.filename())),
           "take both files from the same set");
    }
    labels_.resize(static_cast<size_t>(info_.count));
    file.read(labels_.data());
    info_.classes = *std::max_element(labels_.begin(), labels_.end()) + 1;
  }

  void identify(int64_t pixels) {
    for (const uint8_t label : labels_) count_class(label);
    Fingerprint print(info_.kind);
    for (const int64_t size : {info_.count, in_height_, in_width_}) print.add(size);
    print.add(std::as_bytes(std::span(labels_)));
    print.add(std::as_bytes(std::span(pixels_.get(), static_cast<size_t>(pixels))));
    info_.fingerprint = print.hex();
  }

  std::unique_ptr<uint8_t[]> pixels_;
  std::vector<uint8_t> labels_;
  int64_t in_height_ = 0;
  int64_t in_width_ = 0;
};

}  // namespace

std::unique_ptr<Source> open_idx(const fs::path& images, const fs::path& labels,
                                 const SourceOptions& options) {
  check_pixel_channels(options);
  return std::make_unique<IdxSource>(images, labels, options);
}

}  // namespace ebb
