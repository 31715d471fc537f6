// Safetensors: opened, every tensor read as it is and as numbers, hashes verified.
#include "formats/safetensors.h"

#include <vector>

#include "fuzz.h"

namespace ebb {

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  const SafetensorsReader reader(file.holding(bytes), Exit::data, 1 << 20);
  static std::vector<std::byte> raw;
  static std::vector<float> floats;
  static std::vector<int64_t> whole;
  for (const TensorEntry& entry : reader.tensors()) {
    if (reader.find(entry.name) != &entry || entry.bytes() > std::ssize(bytes)) std::abort();
    raw.resize(static_cast<size_t>(entry.bytes()));
    reader.read(entry, raw.data(), entry.bytes());
    may_refuse([&] {
      floats.resize(static_cast<size_t>(entry.count()));
      reader.read_f32(entry, floats.data(), entry.count());
    });
    may_refuse([&] {
      whole.resize(static_cast<size_t>(entry.count()));
      reader.read_i64(entry, whole.data(), entry.count());
    });
  }
  verify_hashes(reader);
}

}  // namespace ebb
