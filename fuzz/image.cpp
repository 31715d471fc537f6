// Images of one kind, EBB_FUZZ_KIND: the header, then every row, within the scratch it asked for.
#include "formats/image.h"

#include <vector>

#include "fuzz.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  const auto reader = ImageReader::open(file.holding(bytes));
  const ImageInfo& info = reader->info();
  constexpr int64_t kMostPixels = 1 << 14;  // for speed
  if (info.kind != ImageKind::EBB_FUZZ_KIND || info.width * info.height > kMostPixels) return;
  if (info.width < 1 || info.height < 1 || info.heap_bytes() < 0) std::abort();
  // Of exactly the size that was asked for, so that the sanitizer sees the byte after it.
  std::vector<std::byte> scratch(static_cast<size_t>(info.scratch_bytes()));
  std::vector<uint8_t> row(static_cast<size_t>(info.width * 3));
  reader->start(scratch);
  for (int64_t y = 0; y < info.height; ++y) reader->read_row(row.data());
}

}  // namespace ebb
