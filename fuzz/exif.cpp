// EXIF's orientation: of the bytes as a TIFF structure, and as a file of each kind that can hold
// one.
#include "formats/exif.h"

#include "fuzz.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  static MemoryFile memory;
  const auto check = [](int orientation) {
    if (orientation < 1 || orientation > 8) std::abort();
  };
  check(tiff_orientation({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  InputFile file(memory.holding(bytes));
  check(jpeg_orientation(file));
  check(png_orientation(file));
  check(webp_orientation(file));
}

}  // namespace ebb
