// Memory for measurements: mapped and unmapped, so that nothing of it stays in the heap.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace ebb::cpu {

class Pages {
 public:
  enum class Size { normal, huge };  // huge: as the arena asks for; takes whole huge pages

  explicit Pages(int64_t bytes, Size size = Size::normal) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory_ != MAP_FAILED, "probe: the system refused {} bytes", bytes_);
    if (size == Size::huge) madvise(memory_, bytes_, MADV_HUGEPAGE);
    constexpr int64_t kPage = 4096;
    for (int64_t at = 0; at < bytes_; at += kPage) data()[at] = std::byte{0};
  }
  ~Pages() { munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  void* memory_;
};

// Bytes that a buffer takes so that the next one starts on a cache line.
inline int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace ebb::cpu
