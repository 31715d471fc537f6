// What is measured of the machine before anything is planned.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/kernels.h"

namespace ebb {

namespace {

constexpr int64_t kSide = 768;  // large enough for oneDNN to pack its operands in whole blocks

// Mapped and unmapped, so that nothing of it stays in the heap.
class Pages {
 public:
  explicit Pages(int64_t floats) : bytes_(floats * 4) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    require(memory_ != MAP_FAILED, "probe: the system refused {} bytes", bytes_);
  }
  ~Pages() { munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  float* data() const { return static_cast<float*>(memory_); }

 private:
  int64_t bytes_;
  void* memory_;
};

// The three roles of a linear layer, once each.
void multiply(const Pages& pages) {
  float* a = pages.data();
  const int64_t n = kSide * kSide;
  plain_sgemm(GemmRole::forward, kSide, kSide, kSide, a, a + n, a + 2 * n);
  plain_sgemm(GemmRole::backward_input, kSide, kSide, kSide, a, a + n, a + 2 * n);
  plain_sgemm(GemmRole::backward_weight, kSide, kSide, kSide, a, a + n, a + 2 * n);
}

// The best of several tries: a probe is for what the machine can do, not for its noise.
template <typename Body>
double best_seconds(int tries, Body body) {
  double best = 1e9;
  for (int i = 0; i < tries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

}  // namespace

int64_t warm_up_bytes() { return 3 * kSide * kSide * 4; }

void warm_up_cpu() { multiply(Pages(3 * kSide * kSide)); }

MeasuredRates measure_rates() {
  MeasuredRates rates{};
  {
    const Pages pages(3 * kSide * kSide);
    const double flops = 3 * 2.0 * kSide * kSide * kSide;
    rates.flops = flops / best_seconds(4, [&] { multiply(pages); });
  }
  const int64_t n = int64_t{1} << 21;
  const Pages pages(3 * n);
  const std::byte* reads[] = {reinterpret_cast<std::byte*>(pages.data()),
                              reinterpret_cast<std::byte*>(pages.data() + n)};
  std::byte* const writes[] = {reinterpret_cast<std::byte*>(pages.data() + 2 * n)};
  Call call;
  call.reads = reads;
  call.writes = writes;
  rates.bytes = 3.0 * n * 4 / best_seconds(5, [&] { cpu::run(Add{n}, call); });
  return rates;
}

}  // namespace ebb
