// NumPy's .npz with the members that evaluation suites read: arr_0 (N,H,W,C) uint8, arr_1 (N)
// int64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/atomic_file.h"

namespace ebb {

// Writes images as they come, so a set of any size needs no memory of its own. A stored zip with
// 64-bit sizes: 50,000 images of 256x256 are 9.2 GiB. The file appears on finish(), whole or not at
// all. Fails with Exit::disk. Not thread-safe.
class NpzSamplesWriter {
 public:
  NpzSamplesWriter(const std::filesystem::path& path, int64_t count, int64_t height, int64_t width,
                   int64_t channels);

  // images: (n, H, W, C).
  void add(const uint8_t* images, int64_t n);

  // labels: (count). All images must have been added.
  void finish(const int64_t* labels);

 private:
  struct Member {
    std::string name;
    int64_t offset = 0;
    int64_t bytes = 0;
    uint32_t crc = 0;
  };
  void put(const std::string& bytes);
  void begin(const std::string& name, const std::string& npy_header, int64_t data_bytes);
  void add_data(const void* bytes, int64_t count);
  void end();
  void write_directory();

  AtomicFile file_;
  int64_t count_;
  int64_t image_bytes_;
  int64_t added_ = 0;
  int64_t written_ = 0;
  std::vector<Member> members_;
};

void write_npz_samples(const std::filesystem::path& path, const uint8_t* images,
                       const int64_t* labels, int64_t count, int64_t height, int64_t width,
                       int64_t channels);

}  // namespace ebb
