#include "formats/npy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "formats/atomic_file.h"

namespace ebb {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kMaxHeader = 10000;  // numpy's own limit

int64_t item_bytes(NpyType type) {
  switch (type) {
    case NpyType::f2:
      return 2;
    case NpyType::f4:
      return 4;
    case NpyType::f8:
      return 8;
    case NpyType::i4:
      return 4;
    case NpyType::i8:
      return 8;
    case NpyType::u1:
      return 1;
  }
  return 0;
}

}  // namespace

NpyFile::NpyFile(const std::filesystem::path& path) : file_(path) {
  std::array<unsigned char, 12> start = {};
  read_exactly(start.data(), 8);
  const int version = start[6];
  if (std::memcmp(start.data(), "\x93NUMPY", 6) != 0 || version < 1 || version > 3) {
    fail(Exit::data,
         fmt::format("{}: found another kind of file, wanted .npy version 1 to 3", file_.name()),
         "write the file again with numpy.save");
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  read_exactly(start.data() + 8, length_bytes);
  const size_t length = version == 1 ? size_t{start[8]} | size_t{start[9]} << 8
                                     : size_t{start[8]} | size_t{start[9]} << 8 |
                                           size_t{start[10]} << 16 | size_t{start[11]} << 24;
  if (length > kMaxHeader) {
    fail(Exit::data,
         fmt::format("{}: found a .npy header of {} bytes, wanted at most {}", file_.name(), length,
                     kMaxHeader),
         "write the file again with numpy.save");
  }
  std::array<char, kMaxHeader> text;
  read_exactly(text.data(), length);
  header_ = parse_npy_header({text.data(), length}, file_.name());
  const auto offset = static_cast<int64_t>(8 + length_bytes + length);
  const int64_t wanted = offset + header_.count * item_bytes(header_.type);
  if (file_.size() != wanted) {
    fail(Exit::data,
         fmt::format("{}: found {} bytes, wanted {} for shape {}", file_.name(), file_.size(),
                     wanted, format_shape(header_.shape())),
         "the file is damaged; write it again with numpy.save");
  }
}

void NpyFile::read_exactly(void* to, size_t bytes) {
  if (file_.read(to, bytes) == bytes) return;
  fail(Exit::data, fmt::format("{}: the .npy file ends too early", file_.name()),
       "the file is damaged; write it again with numpy.save");
}

template <typename From, typename To>
void NpyFile::convert(To* values) {
  if constexpr (std::is_same_v<From, To>) {
    read_exactly(values, static_cast<size_t>(header_.count) * sizeof(To));
  } else {
    std::array<From, 1024> chunk;
    for (int64_t done = 0; done < header_.count;) {
      const int64_t n = std::min<int64_t>(header_.count - done, chunk.size());
      read_exactly(chunk.data(), static_cast<size_t>(n) * sizeof(From));
      for (int64_t i = 0; i < n; ++i) {
        values[done + i] = static_cast<To>(chunk[i]);
      }
      done += n;
    }
  }
}

void NpyFile::read(float* values) {
  switch (header_.type) {
    case NpyType::f2:
      return convert<F16>(values);
    case NpyType::f4:
      return convert<float>(values);
    case NpyType::f8:
      return convert<double>(values);
    case NpyType::i4:
      return convert<int32_t>(values);
    case NpyType::i8:
      return convert<int64_t>(values);
    case NpyType::u1:
      return convert<uint8_t>(values);
  }
}

void NpyFile::read(int64_t* values) {
  switch (header_.type) {
    case NpyType::i4:
      return convert<int32_t>(values);
    case NpyType::i8:
      return convert<int64_t>(values);
    case NpyType::u1:
      return convert<uint8_t>(values);
    default:
      break;
  }
  fail(Exit::data, fmt::format("{}: found fractional numbers, wanted whole ones", file_.name()),
       "convert it with numpy's astype('<i8')");
}

void NpyFile::read_halves(F16* values) {
  require(header_.type == NpyType::f2, "npy: {} has no numbers of 16 bits", file_.name());
  convert<F16>(values);
}

NpyWriter::NpyWriter(const std::filesystem::path& path, std::span<const int64_t> shape)
    : file_(path), left_(1) {
  for (const int64_t dim : shape) left_ *= dim;
  const std::string header = make_npy_header("<f4", shape);
  file_.write(header.data(), header.size());
}

void NpyWriter::add(const float* values, int64_t count) {
  file_.write(values, static_cast<size_t>(count) * sizeof(float));
  left_ -= count;
}

void NpyWriter::finish() {
  require(left_ == 0, "npy: {} values were not added", left_);
  file_.commit();
}

void write_npy(const std::filesystem::path& path, const float* values,
               std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  NpyWriter writer(path, shape);
  writer.add(values, count);
  writer.finish();
}

}  // namespace ebb
