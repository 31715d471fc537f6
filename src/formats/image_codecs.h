// The two readers behind ImageReader::open, each in a file of its own.
#pragma once

#include <memory>
#include <string>

#include "formats/image.h"
#include "formats/input_file.h"

namespace ebb {

// `file` stands at its first byte.
std::unique_ptr<ImageReader> open_png(InputFile file);
std::unique_ptr<ImageReader> open_jpeg(InputFile file);

// Both refuse in the same words.
void check_image_size(const std::string& name, int64_t width, int64_t height);
[[noreturn]] void fail_image(const std::string& name, const char* kind, const char* reason);

}  // namespace ebb
