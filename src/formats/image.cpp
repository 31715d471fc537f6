#include "formats/image.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/image_codecs.h"

namespace ebb {
namespace {

constexpr int64_t kDecodedPixelBytes = 4;  // RGBA or CMYK, before it becomes RGB

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

int64_t ImageInfo::scratch_bytes() const {
  const bool interlaced = kind == ImageKind::png && whole;
  return width * (interlaced ? height : 1) * kDecodedPixelBytes;
}

int64_t ImageInfo::heap_bytes() const {
  if (kind == ImageKind::png) {
    // zlib's window and state, libpng's structs and palette; two rows of up to 8 bytes a pixel.
    return (int64_t{192} << 10) + 3 * (width * 8 + 64);
  }
  // Tables and pools; a row of MCUs of up to 4 components, with context, before and after
  // upsampling. In several scans: every 16-bit coefficient of every component as well.
  const int64_t rows = (int64_t{256} << 10) + 256 * width;
  const int64_t components = channels == 1 ? 1 : 4;
  const int64_t coefficients = 2 * components * round_up(width, 32) * round_up(height, 32);
  return rows + (whole ? coefficients : 0);
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
  unsigned char magic[8] = {};
  const size_t got = file.read(magic, sizeof(magic));
  std::rewind(file.stream());
  if (got >= 8 && std::memcmp(magic, "\x89PNG\r\n\x1a\n", 8) == 0) return open_png(std::move(file));
  if (got >= 3 && std::memcmp(magic, "\xff\xd8\xff", 3) == 0) return open_jpeg(std::move(file));
  fail(Exit::data,
       fmt::format("{}: found {}, wanted a PNG or a JPEG", file.name(),
                   got == 0 ? "an empty file" : "another kind of file"),
       "convert the image to PNG or JPEG, or remove it");
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
