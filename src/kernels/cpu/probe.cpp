// What is measured of the machine before anything is planned.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <vector>

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
  std::byte* aligned_after(std::byte* at) const {
    const auto* start = static_cast<std::byte*>(memory_);
    return at + (64 - (at - start) % 64) % 64;
  }

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

int64_t warm_up_cpu(const Linear& shape) {
  const LinearBackwardInput input{shape.R, shape.K, shape.N};
  const LinearBackwardWeight weight{shape.R, shape.K, shape.N};
  const int64_t x_floats = shape.R * shape.K;
  const int64_t w_floats = shape.N * shape.K;
  const int64_t y_floats = shape.R * shape.N;
  const int64_t scratch_bytes =
      std::max({cpu::scratch(shape), cpu::scratch(input), cpu::scratch(weight), int64_t{64}});
  const int64_t floats = x_floats + w_floats + y_floats + shape.N + scratch_bytes / 4 + 64;
  const Pages pages(floats);
  auto* x = reinterpret_cast<std::byte*>(pages.data());
  std::byte* w = x + x_floats * 4;
  std::byte* y = w + w_floats * 4;
  std::byte* b = y + y_floats * 4;
  const auto run = [&](const auto& op, std::vector<const std::byte*> reads,
                       std::vector<std::byte*> writes, std::vector<std::byte*> updates) {
    Call call;
    call.reads = reads;
    call.writes = writes;
    call.updates = updates;
    call.scratch = {pages.aligned_after(b + shape.N * 4), static_cast<size_t>(scratch_bytes)};
    cpu::run(op, call);
  };
  run(shape, {x, w, b}, {y}, {});
  run(input, {y, w}, {x}, {});
  run(weight, {y, x}, {}, {w});
  return floats * 4;
}

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
