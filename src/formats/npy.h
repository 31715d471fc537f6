// NumPy's .npy. The header is a Python dict literal: it is parsed by a strict little grammar, and
// nothing in it is ever evaluated.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/float16.h"
#include "formats/atomic_file.h"
#include "formats/input_file.h"

namespace ebb {

enum class NpyType : uint8_t { f2, f4, f8, i4, i8, u1 };

inline constexpr int kMaxNpyRank = 8;

struct NpyHeader {
  NpyType type = NpyType::f4;
  int rank = 0;
  std::array<int64_t, kMaxNpyRank> dims = {};
  int64_t count = 1;  // the product of dims

  std::span<const int64_t> shape() const { return {dims.data(), static_cast<size_t>(rank)}; }
};

// "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 32, 32), }". Fails with Exit::data.
NpyHeader parse_npy_header(std::string_view text, const std::string& name);

// Versions 1, 2 and 3, C order. Fails with Exit::data, naming the file; one that is shorter or
// longer than its header says is refused on opening.
class NpyFile {
 public:
  explicit NpyFile(const std::filesystem::path& path);
  const NpyHeader& header() const { return header_; }

  // Each reads all header().count values, once. The first takes every type, the second whole
  // numbers only, the third f2 only, as they are. None allocates.
  void read(float* values);
  void read(int64_t* values);
  void read_halves(F16* values);

  // Instead: up to so many bytes of the values as they lie in the file. Returns how many.
  size_t read_start(std::span<std::byte> to) { return file_.read(to.data(), to.size()); }

 private:
  template <typename From, typename To>
  void convert(To* values);
  void read_exactly(void* to, size_t bytes);

  InputFile file_;
  NpyHeader header_;
};

// "(1, 4, 32, 32)", as Python writes it.
std::string format_shape(std::span<const int64_t> shape);

// Version 1 header with its magic, padded to a multiple of 64. `descr`: "<f4", "|u1", ...
std::string make_npy_header(std::string_view descr, std::span<const int64_t> shape);

// Writes floats as they come. The file appears on finish(), whole or not at all. Fails with
// Exit::disk.
class NpyWriter {
 public:
  NpyWriter(const std::filesystem::path& path, std::span<const int64_t> shape);
  void add(const float* values, int64_t count);
  void finish();  // all values of the shape must have been added

 private:
  AtomicFile file_;
  int64_t left_;
};

void write_npy(const std::filesystem::path& path, const float* values,
               std::span<const int64_t> shape);

}  // namespace ebb
