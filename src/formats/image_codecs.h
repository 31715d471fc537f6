// The readers behind ImageReader::open, each in a file of its own.
#pragma once

#include <memory>
#include <string>

#include "formats/image.h"
#include "formats/input_file.h"

namespace ebb {

// `file` stands at its first byte.
std::unique_ptr<ImageReader> open_png(InputFile file);
std::unique_ptr<ImageReader> open_jpeg(InputFile file);
std::unique_ptr<ImageReader> open_webp(InputFile file);
std::unique_ptr<ImageReader> open_gif(InputFile file);
std::unique_ptr<ImageReader> open_bmp(InputFile file);

// Pixels of 4 bytes become pixels of 3: what shows through is white.
void composite_on_white(uint8_t* rgb, const uint8_t* rgba, int64_t width);

// Memory that libwebp takes from the heap while one of these lives, in this thread: refused beyond
// `limit`, which libwebp reports as an error of its own.
class WebpHeap {
 public:
  explicit WebpHeap(int64_t limit);
  ~WebpHeap();
  WebpHeap(const WebpHeap&) = delete;
  WebpHeap& operator=(const WebpHeap&) = delete;
};

// All refuse in the same words.
void check_image_size(const std::string& name, int64_t width, int64_t height);
[[noreturn]] void fail_image(const std::string& name, const char* kind, const char* reason);

}  // namespace ebb
