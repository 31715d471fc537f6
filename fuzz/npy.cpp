// NumPy's .npy: the header alone, and files with their values as floats and as whole numbers.
#include "formats/npy.h"

#include <vector>

#include "fuzz.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  may_refuse([&] { parse_npy_header(bytes, "input"); });
  static MemoryFile file;
  const std::string& path = file.holding(bytes);
  const auto read_as = [&](auto& values) {
    NpyFile npy(path);
    if (npy.header().count > std::ssize(bytes)) std::abort();
    values.resize(static_cast<size_t>(npy.header().count));
    npy.read(values.data());
  };
  static std::vector<float> floats;
  static std::vector<int64_t> whole;
  may_refuse([&] { read_as(floats); });
  read_as(whole);
}

}  // namespace ebb
