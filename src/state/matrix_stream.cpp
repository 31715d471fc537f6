#include "state/matrix_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/text.h"
#include "model/storage.h"

namespace ebb {

namespace {

const TensorEntry& entry_of(const SafetensorsReader& file, const std::string& name, TensorType type,
                            const Shape& shape) {
  const TensorEntry* entry = file.find(name);
  const std::string where = printable(file.path().string());
  constexpr const char* kHint = "the file is of another model, or was changed by others";
  if (entry == nullptr) fail(Exit::disk, fmt::format("{}: no tensor {}", where, name), kHint);
  if (entry->shape != shape || entry->type != type) {
    fail(Exit::disk,
         fmt::format("{}: {} is {} of shape {}, wanted {} of {}", where, name,
                     type_name(entry->type), shape_text(entry->shape), type_name(type),
                     shape_text(shape)),
         kHint);
  }
  return *entry;
}

}  // namespace

MatrixBits read_matrix_bits(const SafetensorsReader& file, const ParamSpec& spec) {
  MatrixBits bits(spec.rows(), spec.columns());
  const int64_t row_bytes = std::ssize(bits.bytes()) / spec.rows();
  TensorStream(file, entry_of(file, kMask + spec.name, TensorType::U8, {spec.rows(), row_bytes}))
      .read(bits.bytes().data(), std::ssize(bits.bytes()));
  int64_t count = 0, behind = 0;
  const int64_t used = spec.columns() % 8;  // bits of a row's last byte
  for (int64_t i = 0; i < std::ssize(bits.bytes()); ++i) {
    count += std::popcount(bits.bytes()[i]);
    if (used != 0 && (i + 1) % row_bytes == 0) behind |= bits.bytes()[i] >> used;
  }
  if (behind == 0 && count == spec.left) return bits;
  fail(Exit::disk,
       fmt::format("{}: {}{} leaves {} weights, wanted the model's {}",
                   printable(file.path().string()), kMask, spec.name, count, spec.left),
       "the file is damaged: use another copy or an earlier checkpoint");
}

MatrixStream::MatrixStream(const SafetensorsReader& file, const ParamSpec& spec,
                           const std::string& prefix)
    : sparse_(spec.sparse()),
      count_(element_count(spec.shape)),
      stream_(file, entry_of(file, prefix + spec.name, TensorType::F32, spec.stored())) {
  if (sparse_) bits_ = read_matrix_bits(file, spec);
}

void MatrixStream::read(float* values, int64_t count) {
  constexpr auto kItem = static_cast<int64_t>(sizeof(float));
  const int64_t first = done_;
  done_ += count;
  if (!sparse_) return stream_.read(values, count * kItem);
  int64_t there = 0;
  for (int64_t i = 0; i < count; ++i) there += bits_.at(first + i) ? 1 : 0;
  part_.resize(static_cast<size_t>(there));
  stream_.read(part_.data(), there * kItem);
  const float* next = part_.data();
  for (int64_t i = 0; i < count; ++i) values[i] = bits_.at(first + i) ? *next++ : 0;
}

}  // namespace ebb
