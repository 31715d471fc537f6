// The safetensors format: u64 header length, a JSON header, then the bytes of the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ebb {

class JsonReader;

// The format's types of whole bytes, under the names that files use. The packed ones (F4, F6_*)
// are refused by name like unknown ones.
enum class TensorType {
  BOOL,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

struct TensorTypeInfo {
  const char* name;
  int64_t size;  // bytes
};

// In the order of TensorType.
constexpr TensorTypeInfo kTensorTypes[] = {
    {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},     {"U16", 2},
    {"F16", 2},     {"BF16", 2},        {"I32", 4},         {"U32", 4},     {"F32", 4},
    {"C64", 8},     {"F64", 8},         {"I64", 8},         {"U64", 8},
};
static_assert(std::size(kTensorTypes) == static_cast<size_t>(TensorType::U64) + 1);

constexpr const char* type_name(TensorType type) {
  return kTensorTypes[static_cast<int>(type)].name;
}
constexpr int64_t item_size(TensorType type) { return kTensorTypes[static_cast<int>(type)].size; }

// The bytes that a shape takes; nothing when an extent is negative or the product overflows.
std::optional<int64_t> tensor_bytes(TensorType type, const std::vector<int64_t>& shape);

std::string tensor_shape_text(const std::vector<int64_t>& shape);  // "[2,3]"

struct TensorEntry {
  std::string name;
  TensorType type;
  std::vector<int64_t> shape;  // empty: a scalar
  uint64_t begin, end;         // bytes, from the beginning of the data section

  // Items. The product does not overflow: the reader refused the shapes where it would.
  int64_t count() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  int64_t bytes() const { return static_cast<int64_t>(end - begin); }
};

// Opens and validates a file whatever its bytes; reads tensors with pread into the caller's memory
// and never holds the data. Every failure is an Error with `code`.
//
// Refused: a header past max_header bytes or past the file, JSON that is not strict, unknown or
// packed types, shapes whose product overflows or differs from the offsets, holes, overlaps, bytes
// after the last tensor, metadata other than string to string. More than 64 dimensions or 100,000
// metadata entries are refused too, so that memory stays within about five times the header while
// it is read; callers with a small budget lower max_header.
// const functions may be called from several threads at once.
class SafetensorsReader {
 public:
  static constexpr std::string_view kMetadataKey = "__metadata__";
  static constexpr int64_t kMaxHeaderBytes = 100'000'000;
  static constexpr size_t kMaxRank = 64;
  static constexpr size_t kMaxMetadata = 100'000;

  explicit SafetensorsReader(std::filesystem::path path, Exit code = Exit::disk,
                             int64_t max_header = kMaxHeaderBytes);

  const std::vector<TensorEntry>& tensors() const { return tensors_; }  // in the header's order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorEntry* find(std::string_view name) const;  // nullptr: no such tensor

  // The whole tensor as stored. `bytes`, the size of `out`, must equal entry.bytes().
  void read(const TensorEntry& entry, void* out, int64_t bytes) const;
  // Part of it: bytes [offset, offset + bytes), which must lie inside.
  void read_range(const TensorEntry& entry, int64_t offset, void* out, int64_t bytes) const;

  // The whole tensor as another type, converted through a small fixed buffer. `count`, the size of
  // `out`, must equal entry.count(); of a part, first + count may not be above it. Floats from F64,
  // F32, F16 or BF16; integers from I64, I32, I16, I8 or U8; other types are refused.
  void read_f32(const TensorEntry& entry, float* out, int64_t count) const;
  void read_f32_part(const TensorEntry& entry, int64_t first, float* out, int64_t count) const;
  void read_f64(const TensorEntry& entry, double* out, int64_t count) const;
  void read_i64(const TensorEntry& entry, int64_t* out, int64_t count) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Descriptor {
    int fd = -1;
    Descriptor() = default;
    Descriptor(Descriptor&& other) noexcept : fd(other.fd) { other.fd = -1; }
    ~Descriptor();
  };

  [[noreturn]] void refuse(const std::string& what) const;
  void read_file(uint64_t offset, void* out, uint64_t bytes) const;
  std::string open_header(int64_t max_header);
  void parse_header(const std::string& text);
  void parse_metadata(JsonReader& json);
  TensorEntry parse_entry(JsonReader& json, std::string name) const;
  void check_layout();
  void check_size(const TensorEntry& entry, int64_t found, int64_t wanted, const char* unit) const;
  [[noreturn]] void refuse_type(const TensorEntry& entry, const char* wanted) const;
  template <typename Stored, typename To>
  void convert(const TensorEntry& entry, int64_t first, int64_t count, To* out) const;
  template <typename To>
  void read_floats(const TensorEntry& entry, int64_t first, int64_t count, To* out) const;

  std::filesystem::path path_;
  Exit code_;
  Descriptor file_;
  uint64_t data_begin_ = 0, data_bytes_ = 0;
  std::vector<TensorEntry> tensors_;
  std::vector<uint32_t> by_name_;  // indices of tensors_, sorted by name
  std::map<std::string, std::string> metadata_;
};

struct TensorData {
  std::string name;
  TensorType type;
  std::vector<int64_t> shape;
  const void* data;  // may be null when the tensor is empty
  // Where data is null and this is set: puts the bytes [offset, offset + bytes) into `out`. Called
  // for one part of the tensor after the other.
  std::function<void(int64_t offset, void* out, int64_t bytes)> read = {};
};
inline constexpr int64_t kTensorPart = 64 << 10;  // bytes of each part but the last

// Writes atomically, the tensors in the given order, the data at a multiple of 64 bytes. When
// hash_tensors, metadata gains "xxh3.NAME" = 16 hex digits of XXH3_64 of each tensor's bytes, and
// "ebb.xxh3" = that of all other entries whose keys begin with "ebb.".
// Names are distinct, valid UTF-8 and not "__metadata__"; metadata values that are not UTF-8 get
// U+FFFD in place of the bad bytes, since a save must not fail over a comment.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorData>& tensors,
                       std::map<std::string, std::string> metadata, bool hash_tensors);

// Checks the entries "ebb.*" against their hash, where there is one: older files have none.
void verify_metadata(const SafetensorsReader& reader);

// Fails with Exit::disk where there is a hash of a tensor that is not there.
void verify_hashed_names(const SafetensorsReader& reader);

// Both, and checks every tensor whose hash the metadata carries, reading through a small fixed
// buffer; fails with Exit::disk naming the first that differs. With `wanted`: only those that it
// picks.
void verify_hashes(const SafetensorsReader& reader,
                   const std::function<bool(const std::string& name)>& wanted = {});

}  // namespace ebb
