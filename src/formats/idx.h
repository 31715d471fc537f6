// IDX: the format of MNIST and its relatives, plain or gzip-compressed. Unsigned bytes only.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct gzFile_s;

namespace ebb {

// Reads the header on opening, the values when asked. Fails with Exit::data, naming the file.
class IdxFile {
 public:
  // `rank`: the number of dimensions wanted, 1 (labels) to 3 (images).
  IdxFile(const std::filesystem::path& path, int rank);

  // Every dimension is at least 1, and the file is long enough to hold count() values (a compressed
  // one: could be), so a header alone cannot ask for memory.
  int64_t dim(int axis) const { return dims_[axis]; }
  int64_t count() const { return count_; }

  // Reads all count() values, once; the file must end with the last of them.
  void read(uint8_t* values);

 private:
  struct Close {
    void operator()(gzFile_s* file) const;
  };
  // Fills `to` from the file, or fails saying how far it came.
  void read_exactly(void* to, int64_t bytes, const char* what);

  std::string name_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::array<int64_t, 3> dims_ = {1, 1, 1};
  int64_t count_ = 1;
};

}  // namespace ebb
