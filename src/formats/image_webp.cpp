// WebP through libwebp, which wants the whole file and writes the whole picture: both lie in the
// caller's scratch. Of an animation the first frame is read, on its canvas, as of a GIF.
#include <malloc.h>
#include <webp/decode.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "formats/image_codecs.h"

namespace ebb {
namespace {

constexpr int kMaxChunks = 256;

struct HeapUse {
  bool counting = false;
  int64_t used = 0, limit = 0;
};
thread_local HeapUse heap_use;

// `all` bytes by `take`, unless that is more than may be used.
template <typename Take>
void* take_counted(uint64_t count, size_t size, const Take& take) {
  uint64_t all = 0;
  if (__builtin_mul_overflow(count, uint64_t{size}, &all) || all > uint64_t{1} << 40)
    return nullptr;
  const auto bytes = static_cast<int64_t>(all);
  if (heap_use.counting && bytes > heap_use.limit - heap_use.used) return nullptr;
  void* block = take();
  if (heap_use.counting && block != nullptr) {
    heap_use.used += static_cast<int64_t>(malloc_usable_size(block));
  }
  return block;
}

uint32_t little(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return value;
}

class WebpReader final : public ImageReader {
 public:
  explicit WebpReader(InputFile file) : file_(std::move(file)) {
    check_length();
    find_picture();
    if (frame_.end == 0) {  // not an animation: libwebp sees the whole file
      frame_.end = file_.size();
      info_.width = frame_.width;
      info_.height = frame_.height;
    }
    check_image_size(file_.name(), info_.width, info_.height);
    check_image_size(file_.name(), frame_.width, frame_.height);
    if (frame_.left + frame_.width > info_.width || frame_.top + frame_.height > info_.height ||
        frame_.end > file_.size()) {
      refuse("its parts disagree on its size");
    }
    info_.channels = 3;
    info_.whole = true;
  }

  void start(std::span<std::byte> scratch) override {
    require(std::ssize(scratch) >= info_.scratch_bytes(), "webp: scratch too small");
    const auto pixel_bytes = static_cast<size_t>(frame_.width * frame_.height * 4);
    pixels_ = reinterpret_cast<uint8_t*>(scratch.data());
    uint8_t* data = pixels_ + pixel_bytes;
    const auto size = static_cast<size_t>(frame_.end - frame_.begin);
    file_.seek(frame_.begin);
    if (file_.read(data, size) < size) refuse("the file ends too early");

    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) throw Bug("libwebp is not the one compiled for");
    config.output.colorspace = MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {pixels_, static_cast<int>(frame_.width * 4), pixel_bytes};
    const WebpHeap heap(info_.heap_bytes());
    const VP8StatusCode status = WebPDecode(data, size, &config);
    if (status != VP8_STATUS_OK) refuse(reason(status));
    if (config.output.width != frame_.width || config.output.height != frame_.height) {
      refuse("its parts disagree on its size");
    }
  }

  void read_row(uint8_t* rgb) override {
    require(pixels_ != nullptr && row_ < info_.height, "webp: no row {} to read", row_);
    const int64_t y = row_++ - frame_.top;
    std::fill_n(rgb, info_.width * 3, uint8_t{255});
    if (y < 0 || y >= frame_.height) return;
    composite_on_white(rgb + 3 * frame_.left, pixels_ + y * frame_.width * 4, frame_.width);
  }

 private:
  [[noreturn]] void refuse(const char* why) const { fail_image(file_.name(), "WebP", why); }

  static const char* reason(VP8StatusCode status) {
    switch (status) {
      case VP8_STATUS_OUT_OF_MEMORY:
        return "decoding it takes more memory than its size accounts for";
      case VP8_STATUS_NOT_ENOUGH_DATA:
      case VP8_STATUS_SUSPENDED:
        return "the file ends too early";
      case VP8_STATUS_UNSUPPORTED_FEATURE:
        return "it uses a feature that libwebp does not know";
      default:
        return "its data are damaged";
    }
  }

  // libwebp sees of an animation the first frame only.
  void check_length() {
    char bytes[8] = {};
    file_.read(bytes, sizeof(bytes));
    if (little({bytes + 4, 4}) + int64_t{8} > file_.size()) refuse("the file ends too early");
  }

  // Walks over the chunks to the first picture. libwebp checks again what is read of it here.
  void find_picture() {
    bool transparent = false;
    int64_t at = 12;
    for (int i = 0; i < kMaxChunks; ++i) {
      char bytes[24] = {};
      file_.seek(at);
      const std::string_view chunk(bytes, sizeof(bytes));
      if (file_.read(bytes, sizeof(bytes)) < 13) break;
      const auto number = [&](size_t place, size_t count) -> int64_t {
        return little(chunk.substr(place, count));
      };
      const int64_t length = number(4, 4);
      if (chunk.starts_with("VP8 ")) {
        info_.kind = transparent ? ImageKind::webp_exact : ImageKind::webp;
        frame_.width = number(14, 2) & 0x3fff;
        frame_.height = number(16, 2) & 0x3fff;
        return;
      }
      if (chunk.starts_with("VP8L")) {
        info_.kind = ImageKind::webp_exact;
        frame_.width = (number(9, 4) & 0x3fff) + 1;
        frame_.height = (number(9, 4) >> 14 & 0x3fff) + 1;
        return;
      }
      transparent = transparent || chunk.starts_with("ALPH");
      if (chunk.starts_with("VP8X")) {
        info_.width = number(12, 3) + 1;
        info_.height = number(15, 3) + 1;
      }
      if (chunk.starts_with("ANMF") && frame_.end == 0) {  // its own chunks lie within it
        frame_.left = 2 * number(8, 3);
        frame_.top = 2 * number(11, 3);
        frame_.begin = at + 24;
        frame_.end = std::max(frame_.begin, at + 8 + length);
        at = frame_.begin;
      } else {
        at += 8 + length + length % 2;
      }
    }
    refuse("it has no picture");
  }

  // Where the picture lies in the file, and on the canvas.
  struct Frame {
    int64_t begin = 0, end = 0;
    int64_t left = 0, top = 0, width = 0, height = 0;
  };
  InputFile file_;
  Frame frame_;
  uint8_t* pixels_ = nullptr;  // of the frame, RGBA
  int64_t row_ = 0;
};

}  // namespace

WebpHeap::WebpHeap(int64_t limit) { heap_use = {true, 0, limit}; }
WebpHeap::~WebpHeap() { heap_use = {}; }

std::unique_ptr<ImageReader> open_webp(InputFile file) {
  return std::make_unique<WebpReader>(std::move(file));
}

}  // namespace ebb

// libwebp has no setting for its allocator, but calls these three by name, so the program's own
// come before the library's. A file of a few hundred KiB could otherwise make it take a gigabyte.
extern "C" {

void* WebPSafeMalloc(uint64_t count, size_t size) {
  return ebb::take_counted(count, size, [&] { return std::malloc(count * size); });
}

void* WebPSafeCalloc(uint64_t count, size_t size) {
  return ebb::take_counted(count, size, [&] { return std::calloc(count, size); });
}

void WebPSafeFree(void* block) {
  if (ebb::heap_use.counting && block != nullptr) {
    ebb::heap_use.used -= static_cast<int64_t>(malloc_usable_size(block));
  }
  std::free(block);
}
}
