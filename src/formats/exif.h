// How a camera was held: EXIF's orientation, out of hostile bytes. Whatever cannot be read means 1:
// as stored.
#pragma once

#include <cstdint>
#include <span>

#include "formats/input_file.h"

namespace ebb {

// Of a TIFF structure, of either byte order: 1 to 8.
int tiff_orientation(std::span<const uint8_t> tiff);

// Of a file, which stands anywhere after. Each reads at most 64 KiB of it, and headers of the parts
// before.
int jpeg_orientation(InputFile& file);
int png_orientation(InputFile& file);
int webp_orientation(InputFile& file);

// What makes the stored picture upright: first, if `transpose`, swap rows and columns, then mirror
// left to right (x) and top to bottom (y).
struct Upright {
  bool transpose, mirror_x, mirror_y;
};
constexpr Upright upright(int orientation) {
  const int o = orientation;
  return {o >= 5, o == 2 || o == 3 || o == 6 || o == 7, o == 3 || o == 4 || o == 7 || o == 8};
}

}  // namespace ebb
