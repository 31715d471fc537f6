// Reading tensors from an open file, as stored or as another type.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/float16.h"
#include "base/text.h"
#include "formats/safetensors.h"

namespace ebb {

namespace {

constexpr int64_t kChunkBytes = 64 << 10;

}  // namespace

const TensorEntry* SafetensorsReader::find(std::string_view name) const {
  const auto it = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  return it != by_name_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

void SafetensorsReader::read_file(uint64_t offset, void* out, uint64_t bytes) const {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(file_.fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(fmt::format("read: {}", std::strerror(errno)));
    if (got == 0) refuse(fmt::format("the file ended at byte {} while it was read", offset));
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

void SafetensorsReader::read_range(const TensorEntry& entry, int64_t offset, void* out,
                                   int64_t bytes) const {
  require(offset >= 0 && bytes >= 0 && bytes <= entry.bytes() && offset <= entry.bytes() - bytes,
          "{}: range {}+{} of tensor {} with {} bytes", path_.string(), offset, bytes, entry.name,
          entry.bytes());
  read_file(data_begin_ + entry.begin + static_cast<uint64_t>(offset), out,
            static_cast<uint64_t>(bytes));
}

void SafetensorsReader::read(const TensorEntry& entry, void* out, int64_t bytes) const {
  check_size(entry, entry.bytes(), bytes, "bytes");
  read_range(entry, 0, out, bytes);
}

// An Error and no Bug: the count comes from what the caller expects of an untrusted file.
void SafetensorsReader::check_size(const TensorEntry& entry, int64_t found, int64_t wanted,
                                   const char* unit) const {
  if (found == wanted) return;
  fail(code_,
       fmt::format("{}: tensor '{}' of shape {}: found {} {}, wanted {}", printable(path_.string()),
                   printable(entry.name), tensor_shape_text(entry.shape), found, unit, wanted),
       "the file does not belong to this model or setting");
}

void SafetensorsReader::refuse_type(const TensorEntry& entry, const char* wanted) const {
  fail(code_,
       fmt::format("{}: tensor '{}': found type {}, wanted {}", printable(path_.string()),
                   printable(entry.name), type_name(entry.type), wanted),
       "convert the tensor to one of these types");
}

template <typename Stored, typename To>
void SafetensorsReader::convert(const TensorEntry& entry, int64_t first, int64_t count,
                                To* out) const {
  constexpr int64_t kItems = kChunkBytes / static_cast<int64_t>(sizeof(Stored));
  std::array<Stored, kItems> chunk;
  for (int64_t done = 0; done < count;) {
    const int64_t items = std::min(kItems, count - done);
    constexpr auto kSize = static_cast<int64_t>(sizeof(Stored));
    read_range(entry, (first + done) * kSize, chunk.data(), items * kSize);
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): I8 is a number, and keeps its sign
    for (int64_t i = 0; i < items; ++i) out[done + i] = static_cast<To>(chunk[i]);
    done += items;
  }
}

template <typename To>
void SafetensorsReader::read_floats(const TensorEntry& entry, int64_t first, int64_t count,
                                    To* out) const {
  switch (entry.type) {
    case TensorType::F64:
      return convert<double>(entry, first, count, out);
    case TensorType::F32:
      return convert<float>(entry, first, count, out);
    case TensorType::F16:
      return convert<F16>(entry, first, count, out);
    case TensorType::BF16:
      return convert<Bf16>(entry, first, count, out);
    default:
      refuse_type(entry, "F32, F64, F16 or BF16");
  }
}

void SafetensorsReader::read_f32(const TensorEntry& entry, float* out, int64_t count) const {
  if (entry.type == TensorType::F32 && count == entry.count()) {
    return read(entry, out, entry.bytes());
  }
  check_size(entry, entry.count(), count, "numbers");
  read_floats(entry, 0, count, out);
}

void SafetensorsReader::read_f32_part(const TensorEntry& entry, int64_t first, float* out,
                                      int64_t count) const {
  if (first == 0 && count == entry.count()) return read_f32(entry, out, count);
  read_floats(entry, first, count, out);
}

void SafetensorsReader::read_f64(const TensorEntry& entry, double* out, int64_t count) const {
  check_size(entry, entry.count(), count, "numbers");
  read_floats(entry, 0, count, out);
}

void SafetensorsReader::read_i64(const TensorEntry& entry, int64_t* out, int64_t count) const {
  check_size(entry, entry.count(), count, "numbers");
  switch (entry.type) {
    case TensorType::I64:
      return convert<int64_t>(entry, 0, count, out);
    case TensorType::I32:
      return convert<int32_t>(entry, 0, count, out);
    case TensorType::I16:
      return convert<int16_t>(entry, 0, count, out);
    case TensorType::I8:
      return convert<int8_t>(entry, 0, count, out);
    case TensorType::U8:
      return convert<uint8_t>(entry, 0, count, out);
    default:
      refuse_type(entry, "I64, I32, I16, I8 or U8");
  }
}

}  // namespace ebb
