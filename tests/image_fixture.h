// Images as encoders write them, for the tests of formats/image.h.
#pragma once

#include <gtest/gtest.h>
#include <png.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "base/error.h"
#include "formats/image.h"

namespace ebb::image_fixture {

namespace fs = std::filesystem;

class ImageFiles : public ::testing::Test {
 protected:
  ImageFiles() { fs::create_directories(folder_); }
  ~ImageFiles() override { fs::remove_all(folder_); }
  fs::path at(const std::string& name) const { return folder_ / name; }

  const fs::path folder_ =
      fs::temp_directory_path() / ("ebb_image_test_" + std::to_string(::getpid()));
};

using Bytes = std::vector<uint8_t>;

inline Bytes slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A new file each time: ext4 writes one that is truncated to the disk at once, which is slow.
inline void spill(const fs::path& path, const Bytes& bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

struct PngOptions {
  int colour = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  bool interlaced = false;
  bool transparent_first = false;  // tRNS: palette entry 0, or the colour 0
};

// `rows`: packed as the colour type and depth say.
inline void make_png(const fs::path& path, int width, int height, const Bytes& rows,
                     const PngOptions& options = {}) {
  FILE* file = std::fopen(path.c_str(), "wb");
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_set_IHDR(png, info, width, height, options.depth, options.colour,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (options.colour == PNG_COLOR_TYPE_PALETTE) {
    const png_color palette[4] = {{10, 20, 30}, {200, 0, 0}, {0, 200, 0}, {0, 0, 200}};
    png_set_PLTE(png, info, palette, 4);
  }
  if (options.transparent_first) {
    const png_byte alpha[1] = {0};
    const png_color_16 colour = {};
    png_set_tRNS(png, info, alpha, 1, &colour);
  }
  png_write_info(png, info);
  const size_t row_bytes = png_get_rowbytes(png, info);
  std::vector<png_bytep> pointers;
  for (int y = 0; y < height; ++y) {
    pointers.push_back(const_cast<png_bytep>(rows.data() + row_bytes * y));
  }
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

struct JpegOptions {
  J_COLOR_SPACE space = JCS_RGB;
  bool progressive = false;
  int quality = 100;
};

inline void make_jpeg(const fs::path& path, int width, int height, const Bytes& pixels,
                      const JpegOptions& options = {}) {
  FILE* file = std::fopen(path.c_str(), "wb");
  jpeg_compress_struct jpeg;
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  jpeg_stdio_dest(&jpeg, file);
  jpeg.image_width = width;
  jpeg.image_height = height;
  jpeg.input_components = options.space == JCS_GRAYSCALE ? 1 : options.space == JCS_CMYK ? 4 : 3;
  jpeg.in_color_space = options.space;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, options.quality, TRUE);
  if (options.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  for (int y = 0; y < height; ++y) {
    auto* row = const_cast<JSAMPROW>(pixels.data() + size_t{1} * y * width * jpeg.input_components);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::fclose(file);
}

inline Bytes gradient(int width, int height, int channels) {
  Bytes pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        pixels.push_back(static_cast<uint8_t>(20 + 3 * x + 2 * y + 40 * c));
      }
    }
  }
  return pixels;
}

inline Bytes decoded(const fs::path& path) {
  const ImageInfo info = probe_image(path);
  Bytes rgb(static_cast<size_t>(info.width * info.height * 3));
  decode_image(path, info, rgb.data());
  return rgb;
}

inline void expect_near(const Bytes& a, const Bytes& b, int tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "at " << i;
}

// The message of the Error that reading this file must end with.
inline std::string refusal(const fs::path& path) {
  try {
    decoded(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::data);
    EXPECT_NE(std::string(error.what()).find(path.filename().string()), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << path << " was accepted";
  return "";
}

}  // namespace ebb::image_fixture
