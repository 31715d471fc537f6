// Folders of image files, decoded, scaled and turned upright when they are needed.
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/fingerprint.h"
#include "data/image_list.h"
#include "data/kinds.h"
#include "data/resize.h"
#include "formats/exif.h"

namespace ebb {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kVerifyPixels = int64_t{1} << 29;  // more are not decoded on opening
constexpr int64_t kMaxDefaultSize = 256;
constexpr int64_t kAlign = 16;
constexpr size_t kNamedFiles = 3;
constexpr size_t kListedFiles = 20;  // where the user has to do something about them

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Makes a sample upright. Scaling and cutting out the centre do the same to every side of a square,
// so the turn waits until the picture is small: no memory is needed for it. The resizer mirrors
// left to right by itself; mirroring after a transposition is mirroring along the other axis before
// it.
struct Turn {
  bool transpose, mirror_x, mirror_y;

  explicit Turn(int orientation) {
    const Upright to = upright(orientation);
    transpose = to.transpose;
    mirror_x = transpose ? to.mirror_y : to.mirror_x;
    mirror_y = transpose ? to.mirror_x : to.mirror_y;
  }

  // All but mirror_x. pixels: (C, S, S).
  void finish(uint8_t* pixels, int64_t C, int64_t S) const {
    for (uint8_t* plane = pixels; plane < pixels + C * S * S; plane += S * S) {
      for (int64_t i = 0; mirror_y && i < S / 2; ++i) {
        std::swap_ranges(plane + i * S, plane + (i + 1) * S, plane + (S - 1 - i) * S);
      }
      for (int64_t i = 0; transpose && i < S; ++i) {
        for (int64_t j = 0; j < i; ++j) std::swap(plane[i * S + j], plane[j * S + i]);
      }
    }
  }
};

class ImagesSource final : public Source {
 public:
  ImagesSource(const fs::path& folder, const SourceOptions& options)
      : list_(folder, options.memory_limit) {
    info_.kind = "images";
    info_.pixels = true;
    info_.type = DType::u8;
    info_.classes = std::ssize(list_.classes());
    for (const std::string& name : list_.classes()) info_.class_names.push_back(clean_utf8(name));
    info_.notes = list_.notes();
    check_files(folder, options);
    info_.count = list_.size();
    choose_shape(folder, options);
    for (int64_t i = 0; i < list_.size(); ++i) {
      const ImageInfo image = list_.info(i);
      scratch_bytes_ = std::max(scratch_bytes_, parts(image).total);
      heap_bytes_ = std::max(heap_bytes_, image.heap_bytes());
    }
    identify();
  }

  void load(std::byte* values, int32_t* label, int64_t index,
            std::span<std::byte> scratch) const override {
    require(index >= 0 && index < info_.count, "images: sample {} of {}", index, info_.count);
    const ImageInfo image = list_.info(index);
    const Parts at = parts(image);
    require(std::ssize(scratch) >= at.total, "images: scratch too small");
    const auto reader = ImageReader::open(list_.path(index), image);
    reader->start(scratch.subspan(0, at.row));
    auto* row = reinterpret_cast<uint8_t*>(scratch.data() + at.row);
    const Turn turn(image.orientation);
    auto* pixels = reinterpret_cast<uint8_t*>(values);
    Resizer resizer(pixels, resize_shape(image), turn.mirror_x, scratch.subspan(at.resizer));
    for (int64_t y = 0; y < image.height; ++y) {
      reader->read_row(row);
      if (info_.channels == 1) to_gray(row, image.width);
      resizer.add_row(row);
    }
    turn.finish(pixels, info_.channels, info_.width);
    *label = list_.label(index);
  }
  int32_t label(int64_t index) const override { return list_.label(index); }
  std::string name(int64_t index) const override { return shown(list_.path(index)); }
  int64_t most_bad() const override {
    return most_bad_images(info_.count + info_.skipped) - info_.skipped;
  }

  int64_t scratch_bytes() const override { return scratch_bytes_; }
  int64_t heap_bytes() const override { return heap_bytes_ + (int64_t{16} << 10); }  // + its FILE
  int64_t held_bytes() const override { return list_.held_bytes(); }

 private:
  // Where the parts of the scratch begin: the reader's at 0, a row of pixels, the resizer's.
  struct Parts {
    size_t row, resizer;
    int64_t total;
  };
  Parts parts(const ImageInfo& image) const {
    const int64_t row = aligned(image.scratch_bytes());
    const int64_t resizer = row + aligned(image.width * 3);
    return {static_cast<size_t>(row), static_cast<size_t>(resizer),
            resizer + aligned(Resizer::scratch_bytes(resize_shape(image)))};
  }
  Resizer::Shape resize_shape(const ImageInfo& image) const {
    return {image.height, image.width, info_.height, info_.width, static_cast<int>(info_.channels)};
  }
  // In place. A gray pixel keeps its value exactly.
  static void to_gray(uint8_t* row, int64_t width) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* p = row + 3 * x;
      row[x] = static_cast<uint8_t>((299 * p[0] + 587 * p[1] + 114 * p[2] + 500) / 1000);
    }
  }

  // Probes every file, decodes all if they are few, and leaves out those that cannot be decoded.
  void check_files(const fs::path& folder, const SourceOptions& options) {
    std::vector<std::string> reasons, files;
    const auto attempt = [&](int64_t index, auto&& check) {
      try {
        check();
      } catch (const Error& error) {
        list_.set_info(index, {});
        ++info_.skipped;
        if (reasons.size() < kNamedFiles) reasons.emplace_back(error.what());
        if (files.size() < kListedFiles) files.push_back(shown(list_.path(index)));
      }
    };
    int64_t pixels = 0, decode_bytes = 0;
    for (int64_t i = 0; i < list_.size(); ++i) {
      attempt(i, [&] {
        const ImageInfo image = probe_within(i, options.memory_limit);
        list_.set_info(i, image);
        pixels += image.width * image.height;
        decode_bytes = std::max(decode_bytes, image.scratch_bytes() + image.width * 3);
      });
    }
    if (options.verify && list_.size() <= kVerifyFiles && pixels <= kVerifyPixels) {
      const auto memory =
          std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(decode_bytes));
      for (int64_t i = 0; i < list_.size(); ++i) {
        if (list_.info(i).width > 0) attempt(i, [&] { decode_once(i, memory.get()); });
      }
    }
    if (info_.skipped == 0) return;
    const std::string found =
        fmt::format("{}: found {} of {} images that cannot be decoded ({}{})", shown(folder),
                    info_.skipped, list_.size(), joined(reasons, "; "),
                    info_.skipped > std::ssize(reasons) ? "; and others" : "");
    const int64_t most = most_bad_images(list_.size());
    if (info_.skipped > most) {
      const int64_t more = info_.skipped - std::ssize(files);
      fail(Exit::data, fmt::format("{}, wanted at most {}", found, most),
           fmt::format("remove or replace {}{}, then start again", joined(files, ", "),
                       more > 0 ? fmt::format(" and {} more", more) : ""));
    }
    info_.notes.push_back(fmt::format("{}; they are left out", found));
    list_.drop_unset();
  }

  ImageInfo probe_within(int64_t index, int64_t memory_limit) const {
    const ImageInfo image = probe_image(list_.path(index));
    const int64_t bytes = image.scratch_bytes() + image.heap_bytes();
    if (bytes > memory_limit) {
      fail(Exit::data, fmt::format("{}: decoding its {}x{} pixels takes {}, wanted at most {}",
                                   shown(list_.path(index)), image.width, image.height,
                                   format_size(bytes), format_size(memory_limit)));
    }
    return image;
  }
  void decode_once(int64_t index, std::byte* memory) const {
    const ImageInfo image = list_.info(index);
    const auto reader = ImageReader::open(list_.path(index), image);
    const auto scratch = static_cast<size_t>(image.scratch_bytes());
    reader->start({memory, scratch});
    auto* row = reinterpret_cast<uint8_t*>(memory + scratch);
    for (int64_t y = 0; y < image.height; ++y) reader->read_row(row);
  }

  void choose_shape(const fs::path& folder, const SourceOptions& options) {
    std::vector<std::pair<int64_t, int64_t>> sizes;
    bool more = false, colour = false;
    for (int64_t i = 0; i < list_.size(); ++i) {
      const ImageInfo image = list_.info(i);
      colour = colour || image.channels == 3;
      std::pair size(image.width, image.height);
      if (upright(image.orientation).transpose) std::swap(size.first, size.second);
      if (std::find(sizes.begin(), sizes.end(), size) != sizes.end()) continue;
      if (sizes.size() < kNamedFiles) {
        sizes.push_back(size);
      } else {
        more = true;
      }
    }
    info_.channels = options.channels != 0 ? options.channels : colour ? 3 : 1;
    int64_t side = options.image_size;
    if (side == 0) {
      const auto [width, height] = sizes.front();
      if (sizes.size() > 1 || width != height || width > kMaxDefaultSize) {
        std::vector<std::string> seen;
        for (const auto& [w, h] : sizes) seen.push_back(fmt::format("{}x{}", w, h));
        fail(Exit::data,
             fmt::format("{}: found images of {}{}, wanted one square size of at most {}, or "
                         "--image-size",
                         shown(folder), joined(seen, ", "), more ? " and others" : "",
                         kMaxDefaultSize),
             "--image-size 64, say, scales the shorter side to 64 and crops the centre");
      }
      side = width;
    }
    info_.height = info_.width = side;
  }

  // Sizes stand for the contents: reading a million files would take hours.
  void identify() {
    Fingerprint print(info_.kind);
    for (const std::string& name : list_.classes()) print.add(name);
    for (int64_t i = 0; i < list_.size(); ++i) {
      count_class(list_.label(i));
      print.add(list_.label(i));
      print.add(list_.name(i));
      print.add(list_.info(i).file_bytes);
    }
    info_.fingerprint = print.hex();
  }

  ImageList list_;
  int64_t scratch_bytes_ = 0;
  int64_t heap_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Source> open_images(const fs::path& folder, const SourceOptions& options) {
  check_pixel_channels(options);
  return std::make_unique<ImagesSource>(folder, options);
}

}  // namespace ebb
