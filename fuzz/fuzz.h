// What the targets share. A target is a file with one function: `fuzz(bytes)` reads what it is
// given in every way there is. Refusing it with an Error is fine; anything else is a finding.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ebb {

void fuzz(std::string_view bytes);

// A file that is memory, for readers that take paths.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("input", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    if (fd_ < 0) std::abort();
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& holding(std::string_view bytes) {
    if (bytes.size() < size_ && ftruncate(fd_, 0) != 0) std::abort();
    size_ = bytes.size();
    if (pwrite(fd_, bytes.data(), size_, 0) != static_cast<ssize_t>(size_)) std::abort();
    return path_;
  }

 private:
  int fd_;
  std::string path_;
  size_t size_ = 0;
};

// Calls a reader that may refuse what it is given.
template <typename Body>
void may_refuse(Body body) {
  try {
    body();
  } catch (const Error&) {
  }
}

}  // namespace ebb

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::may_refuse([&] { ebb::fuzz({reinterpret_cast<const char*>(data), size}); });
  return 0;
}
