// PNG, JPEG, WebP, GIF and BMP. Files may be hostile: whatever their bytes, the result is pixels or
// an Error (Exit::data) naming the file, within the memory that ImageInfo states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace ebb {

inline constexpr int64_t kMaxImageSide = 32768;
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;
inline constexpr int64_t kMaxImageFile = (int64_t{1} << 32) - 1;

// webp: lossy and without transparency; webp_exact: with either, which takes more memory.
enum class ImageKind : uint8_t { png, jpeg, webp, webp_exact, gif, bmp };

struct ImageInfo {
  int64_t width = 0;
  int64_t height = 0;
  int channels = 0;  // 1: gray, 3: colour. Transparency does not count.
  ImageKind kind = ImageKind::png;
  bool whole = false;       // interlaced or in several scans: no row is ready before the file's end
  uint8_t orientation = 1;  // EXIF's: 1 to 8; rows come as stored, see formats/exif.h
  int64_t file_bytes = 0;

  int64_t scratch_bytes() const;  // what decoding asks of its caller
  int64_t heap_bytes() const;     // the most that the library takes from the heap meanwhile
  bool operator==(const ImageInfo&) const = default;

 private:
  int64_t webp_rows() const;
};

// One image as it is stored, top row first; of a GIF the first frame. Recognised by its first
// bytes, not by its name. Not thread-safe.
class ImageReader {
 public:
  // Reads the header only.
  static std::unique_ptr<ImageReader> open(const std::filesystem::path& path);
  // Fails if the file is no longer the one that was probed, so its memory needs still hold.
  static std::unique_ptr<ImageReader> open(const std::filesystem::path& path,
                                           const ImageInfo& probed);
  virtual ~ImageReader() = default;

  const ImageInfo& info() const { return info_; }

  // `scratch`: info().scratch_bytes() bytes, used until the last row is read.
  virtual void start(std::span<std::byte> scratch) = 0;

  // Writes the next row, 3 bytes a pixel: gray is repeated, 16 bits are rounded to 8, transparency
  // is composited on white. The last row is given only if the file also ends as it should.
  virtual void read_row(uint8_t* rgb) = 0;

 protected:
  ImageInfo info_;
};

// Reads the header only; refuses sides over kMaxImageSide and more than kMaxImagePixels.
ImageInfo probe_image(const std::filesystem::path& path);

// rgb: (height, width, 3). Fails if the file is no longer the one that was probed.
void decode_image(const std::filesystem::path& path, const ImageInfo& info, uint8_t* rgb);

// pixels: (height, width, channels), channels 1 or 3. Whole or not there at all; fails with
// Exit::disk.
void write_png(const std::filesystem::path& path, const uint8_t* pixels, int64_t width,
               int64_t height, int channels);

}  // namespace ebb
