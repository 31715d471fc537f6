// IDX, plain and compressed, as labels and as images.
#include "formats/idx.h"

#include <vector>

#include "fuzz.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  static std::vector<uint8_t> values;
  const std::string& path = file.holding(bytes);
  for (const int rank : {1, 3}) {
    may_refuse([&] {
      IdxFile idx(path, rank);
      // A compressed file may hold a thousand times its size: that it is bounded is enough.
      if (idx.count() / 2000 > std::ssize(bytes)) std::abort();
      if (idx.count() > 1 << 20) return;
      values.resize(static_cast<size_t>(idx.count()));
      idx.read(values.data());
    });
  }
}

}  // namespace ebb
