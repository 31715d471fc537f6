#include "formats/exif.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace ebb {
namespace {

constexpr size_t kMaxExif = 65533;  // what a JPEG segment can hold
constexpr int kMaxParts = 256;      // of a file, in front of its EXIF
constexpr uint16_t kOrientationTag = 0x0112;
constexpr uint16_t kShort = 3;  // the type of its value

uint32_t big(std::string_view bytes) {
  uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

uint32_t little(std::string_view bytes) { return big(std::string(bytes.rbegin(), bytes.rend())); }

// Of the next `bytes` of the file.
int orientation_of_part(InputFile& file, size_t bytes, std::string_view prefix) {
  std::vector<uint8_t> data(std::min(bytes, kMaxExif));
  data.resize(file.read(data.data(), data.size()));
  const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  if (!text.starts_with(prefix)) return 0;
  return tiff_orientation(std::span(data).subspan(prefix.size()));
}

// Reads exactly so many bytes; fewer at the end.
std::string_view next(InputFile& file, std::span<char> to) {
  return {to.data(), file.read(to.data(), to.size())};
}

}  // namespace

int tiff_orientation(std::span<const uint8_t> tiff) {
  const std::string_view text(reinterpret_cast<const char*>(tiff.data()), tiff.size());
  const bool is_little = text.starts_with(std::string_view("II*\0", 4));
  if (!is_little && !text.starts_with(std::string_view("MM\0*", 4))) return 1;
  // A number of so many bytes; 0 where the structure ends before it.
  const auto number = [&](size_t at, size_t bytes) -> uint32_t {
    if (at > text.size() || text.size() - at < bytes) return 0;
    return is_little ? little(text.substr(at, bytes)) : big(text.substr(at, bytes));
  };
  const size_t directory = number(4, 4);
  const size_t entries = number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (entry >= text.size()) return 1;
    if (number(entry, 2) != kOrientationTag) continue;
    const uint32_t value = number(entry + 8, 2);
    const bool known = number(entry + 2, 2) == kShort && value >= 1 && value <= 8;
    return known ? static_cast<int>(value) : 1;
  }
  return 1;
}

// Segments: FF, kind, a length that counts itself. The picture's data begin with kind DA.
int jpeg_orientation(InputFile& file) {
  int64_t at = 2;
  for (int part = 0; part < kMaxParts; ++part) {
    char head[4];
    file.seek(at);
    const std::string_view segment = next(file, head);
    if (segment.size() < 4 || segment[0] != '\xff' || segment[1] == '\xda') return 1;
    if (segment[1] == '\xff') {  // a byte of padding
      ++at;
      continue;
    }
    const uint32_t length = big(segment.substr(2));
    if (length < 2) return 1;
    if (segment[1] == '\xe1') {
      const int found = orientation_of_part(file, length - 2, std::string_view("Exif\0\0", 6));
      if (found > 0) return found;
    }
    at += 2 + length;
  }
  return 1;
}

// Chunks: length, kind, data, checksum.
int png_orientation(InputFile& file) {
  int64_t at = 8;
  for (int part = 0; part < kMaxParts; ++part) {
    char head[8];
    file.seek(at);
    const std::string_view chunk = next(file, head);
    if (chunk.size() < 8 || chunk.ends_with("IDAT") || chunk.ends_with("IEND")) return 1;
    const uint32_t length = big(chunk.substr(0, 4));
    if (chunk.ends_with("eXIf")) return orientation_of_part(file, length, "");
    at += 12 + int64_t{length};
  }
  return 1;
}

// Chunks: kind, length, data, padded to an even length. Some writers keep JPEG's prefix.
int webp_orientation(InputFile& file) {
  int64_t at = 12;
  for (int part = 0; part < kMaxParts; ++part) {
    char head[8];
    file.seek(at);
    const std::string_view chunk = next(file, head);
    if (chunk.size() < 8) return 1;
    const uint32_t length = little(chunk.substr(4));
    if (chunk.starts_with("EXIF")) {
      const int found = orientation_of_part(file, length, std::string_view("Exif\0\0", 6));
      if (found > 0) return found;
      file.seek(at + 8);
      return orientation_of_part(file, length, "");
    }
    at += 8 + int64_t{length} + length % 2;
  }
  return 1;
}

}  // namespace ebb
