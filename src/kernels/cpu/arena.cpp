#include "kernels/cpu/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu/parallel.h"

namespace ebb {

Arena::Arena(int64_t bytes) : bytes_(bytes > 0 ? bytes : 1) {
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    fail(Exit::budget,
         fmt::format("arena: the system refused {}: {}", format_size(bytes_), std::strerror(errno)),
         "free some memory or choose a smaller --batch");
  }
  data_ = static_cast<std::byte*>(mapped);
  madvise(mapped, bytes_, MADV_HUGEPAGE);  // advice: a system without huge pages ignores it
  // Every page now: the first step is then like any other, and the peak is known at once. The
  // system clears them: with all threads, cut at huge pages.
  const int64_t page = sysconf(_SC_PAGESIZE);
  constexpr int64_t kHugePage = 2 << 20;
  cpu::parallel_range((bytes_ + page - 1) / page, kHugePage / page, page,
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) data_[i * page] = std::byte{0};
                      });
}

Arena::~Arena() { munmap(data_, bytes_); }

int64_t Arena::resident_bytes() const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> present((bytes_ + page - 1) / page);
  if (mincore(data_, bytes_, present.data()) != 0) return -1;
  int64_t pages = 0;
  for (const unsigned char p : present) pages += p & 1;
  return pages * page;
}

}  // namespace ebb
