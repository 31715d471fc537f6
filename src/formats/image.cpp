#include "formats/image.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/exif.h"
#include "formats/image_codecs.h"

namespace ebb {
namespace {

constexpr int64_t kDecodedPixelBytes = 4;  // RGBA or CMYK, before it becomes RGB

constexpr int64_t kWebpCodes = 1024;
constexpr int64_t kWebpCodeBytes = 21'000;  // with the largest cache of colours

// What a file begins with, `later` at its bytes 8 to 11, and who reads it.
struct Codec {
  std::string_view magic, later;
  std::unique_ptr<ImageReader> (*open)(InputFile file);
  int (*orientation)(InputFile& file);  // null: the format has none
};
constexpr Codec kCodecs[] = {
    {"\x89PNG\r\n\x1a\n", "", open_png, png_orientation},
    {"\xff\xd8\xff", "", open_jpeg, jpeg_orientation},
    {"RIFF", "WEBP", open_webp, webp_orientation},
    {"GIF87a", "", open_gif, nullptr},
    {"GIF89a", "", open_gif, nullptr},
    {"BM", "", open_bmp, nullptr},
};

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

int64_t ImageInfo::scratch_bytes() const {
  switch (kind) {
    case ImageKind::png:
      return width * (whole ? height : 1) * kDecodedPixelBytes;
    case ImageKind::jpeg:
    case ImageKind::bmp:
      return width * kDecodedPixelBytes;
    case ImageKind::webp:
    case ImageKind::webp_exact:
      return width * height * kDecodedPixelBytes + file_bytes;
    case ImageKind::gif:
      return width * (whole ? height : 1);  // numbers of colours
  }
  return 0;
}

int64_t ImageInfo::heap_bytes() const {
  switch (kind) {
    case ImageKind::png:
      // zlib's window and state, libpng's structs and palette; two rows of up to 8 bytes a pixel.
      return (int64_t{192} << 10) + 3 * (width * 8 + 64);
    case ImageKind::jpeg: {
      // Tables and pools; a row of MCUs of up to 4 components, with context, before and after
      // upsampling. In several scans: every 16-bit coefficient of every component as well.
      const int64_t rows = (int64_t{256} << 10) + 256 * width;
      const int64_t components = channels == 1 ? 1 : 4;
      const int64_t coefficients = 2 * components * round_up(width, 32) * round_up(height, 32);
      return rows + (whole ? coefficients : 0);
    }
    case ImageKind::webp:
      return webp_rows();
    case ImageKind::webp_exact: {
      // Besides: all pixels, a plane of transparency, three images of a 16th of the size that steer
      // the decoding, and a set of codes for each area that has its own. The format allows for
      // 65536 sets, which would take a gigabyte; what encoders write has some hundred.
      const int64_t areas = (width / 4 + 1) * (height / 4 + 1);
      return webp_rows() + width * height * 5 + 3 * 4 * areas +
             std::min(areas, kWebpCodes) * kWebpCodeBytes;
    }
    case ImageKind::gif:
      return int64_t{64} << 10;  // the dictionary
    case ImageKind::bmp:
      return int64_t{8} << 10;  // the palette
  }
  return 0;
}

// Tables, and two rows of macroblocks with what they are predicted from.
int64_t ImageInfo::webp_rows() const { return (int64_t{512} << 10) + 256 * (width + 64); }

void composite_on_white(uint8_t* rgb, const uint8_t* rgba, int64_t width) {
  for (int64_t x = 0; x < width; ++x) {
    const int alpha = rgba[4 * x + 3];
    for (int c = 0; c < 3; ++c) {
      rgb[3 * x + c] =
          static_cast<uint8_t>((rgba[4 * x + c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }
}

void check_image_size(const std::string& name, int64_t width, int64_t height) {
  if (width < 1 || height < 1 || width > kMaxImageSide || height > kMaxImageSide ||
      width * height > kMaxImagePixels) {
    fail(Exit::data,
         fmt::format("{}: found an image of {}x{}, wanted sides from 1 to {} and at most {} pixels",
                     name, width, height, kMaxImageSide, kMaxImagePixels),
         "scale the image down or remove it");
  }
}

void fail_image(const std::string& name, const char* kind, const char* reason) {
  fail(Exit::data,
       fmt::format("{}: found a damaged or unsupported {}: {}", name, kind, printable(reason)),
       "replace the file or remove it");
}

std::unique_ptr<ImageReader> ImageReader::open(const std::filesystem::path& path) {
  InputFile file(path);
  const int64_t bytes = file.size();
  if (bytes > kMaxImageFile) {
    fail(Exit::data,
         fmt::format("{}: found an image file of {}, wanted at most {}", file.name(),
                     format_size(bytes), format_size(kMaxImageFile)),
         "scale the image down or remove it");
  }
  char start[12] = {};
  const std::string_view magic(start, file.read(start, sizeof(start)));
  const Codec* codec = std::find_if(std::begin(kCodecs), std::end(kCodecs), [&](const Codec& each) {
    return magic.starts_with(each.magic) && (each.later.empty() || magic.ends_with(each.later));
  });
  if (codec == std::end(kCodecs)) {
    fail(Exit::data,
         fmt::format("{}: found {}, wanted a PNG, JPEG, WebP, GIF or BMP", file.name(),
                     magic.empty() ? "an empty file" : "another kind of file"),
         "convert the image to PNG or JPEG, or remove it");
  }
  const int orientation = codec->orientation != nullptr ? codec->orientation(file) : 1;
  file.seek(0);
  auto reader = codec->open(std::move(file));
  reader->info_.orientation = static_cast<uint8_t>(orientation);
  reader->info_.file_bytes = bytes;
  return reader;
}

std::unique_ptr<ImageReader> ImageReader::open(const std::filesystem::path& path,
                                               const ImageInfo& probed) {
  auto reader = open(path);
  if (reader->info() == probed) return reader;
  fail(Exit::data,
       fmt::format("{}: found an image of {}x{}, wanted the one of {}x{} seen before: it changed",
                   printable(path.string()), reader->info().width, reader->info().height,
                   probed.width, probed.height),
       "do not change the data while it is in use");
}

ImageInfo probe_image(const std::filesystem::path& path) { return ImageReader::open(path)->info(); }

void decode_image(const std::filesystem::path& path, const ImageInfo& info, uint8_t* rgb) {
  const auto reader = ImageReader::open(path, info);
  const auto bytes = static_cast<size_t>(info.scratch_bytes());
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(bytes);
  reader->start({scratch.get(), bytes});
  for (int64_t y = 0; y < info.height; ++y) reader->read_row(rgb + y * info.width * 3);
}

}  // namespace ebb
