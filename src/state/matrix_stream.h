// A tensor of a checkpoint as the whole tensor that it is left of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/safetensors_stream.h"
#include "model/config.h"

namespace ebb {

// Which elements of a matrix are there, in the order of rows.
class MatrixBits {
 public:
  MatrixBits() = default;
  MatrixBits(int64_t rows, int64_t columns)
      : columns_(columns), row_bytes_((columns + 7) / 8), bytes_(rows * row_bytes_) {}

  bool at(int64_t i) const { return (byte(i) >> (i % columns_ % 8) & 1) != 0; }
  void set(int64_t i) { byte(i) |= static_cast<uint8_t>(1u << (i % columns_ % 8)); }
  int64_t rows() const { return std::ssize(bytes_) / row_bytes_; }
  int64_t columns() const { return columns_; }
  // As files have them: rows of whole bytes, a bit for each column, the lowest first.
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  const uint8_t& byte(int64_t i) const {
    return bytes_[i / columns_ * row_bytes_ + i % columns_ / 8];
  }
  uint8_t& byte(int64_t i) { return bytes_[i / columns_ * row_bytes_ + i % columns_ / 8]; }

  int64_t columns_ = 1, row_bytes_ = 1;
  std::vector<uint8_t> bytes_;
};

// Of a sparse parameter. Fails with Exit::disk where the file has no such mask, or one that leaves
// another number of weights.
MatrixBits read_matrix_bits(const SafetensorsReader& file, const ParamSpec& spec);

// One after the other, from the first element to the last; hashes are checked as TensorStream does.
// The file must outlive it.
class MatrixStream {
 public:
  // prefix: "" for the weight itself, or that of what is kept of it, which is as large.
  MatrixStream(const SafetensorsReader& file, const ParamSpec& spec,
               const std::string& prefix = "");

  // The next so many; those that were pruned are 0.
  void read(float* values, int64_t count);
  // Of the element that read() begins with next, and those behind it.
  bool is_there(int64_t i) const { return !sparse_ || bits_.at(i); }
  int64_t left() const { return count_ - done_; }

 private:
  const bool sparse_;
  const int64_t count_;
  MatrixBits bits_;
  TensorStream stream_;
  std::vector<float> part_;
  int64_t done_ = 0;
};

}  // namespace ebb
