#include "kernels/cpu/device.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/arena.h"
#include "kernels/cpu/bf16_pair.h"
#include "kernels/cpu/calibrate.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pointers.h"
#include "kernels/cpu/vec.h"

namespace ebb {

void cpu::run(const TakeSamples&, const Call&) { throw Bug("samples: asked of the CPU"); }
void cpu::run(const Transfer&, const Call&) { throw Bug("transfer: given to the CPU"); }
void cpu::run(const Exchange&, const Call&) { throw Bug("exchange: given to the CPU"); }

void cpu::run_op(const OpParams& params, const Call& call) {
  std::visit([&](const auto& op) { run(op, call); }, params);
}

int64_t cpu::scratch_of(const OpParams& params) {
  return std::visit([](const auto& op) { return scratch(op); }, params);
}

namespace {

class CpuMemory final : public DeviceMemory {
 public:
  CpuMemory(int64_t bytes, const Limits& limits) {
    for (int64_t at = 0; at == 0 || at < bytes; at += limits.piece_bytes) {
      pieces_.push_back(std::make_unique<Arena>(std::min(limits.piece_bytes, bytes - at)));
    }
  }
  void read(void* to, Place from, int64_t bytes) const override {
    std::memcpy(to, at(from), bytes);
  }
  void write(Place to, const void* from, int64_t bytes) override {
    std::memcpy(at(to), from, bytes);
  }
  void move(Place to, Place from, int64_t bytes) override { std::memmove(at(to), at(from), bytes); }
  std::byte* host(int32_t piece) const override { return pieces_[piece]->data(); }

 private:
  std::byte* at(Place place) const { return host(place.piece) + place.offset; }
  std::vector<std::unique_ptr<Arena>> pieces_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) {}

  std::string identity() const override { return cpu_identity(threads()); }
  std::string kernels() const override { return cpu_kernels(); }
  int threads() const override { return threads_ > 0 ? threads_ : team_threads(); }

  int64_t panel() const override { return cpu::gemm_panel(); }
  int64_t scratch_bytes(const OpParams& params) const override {
    const TeamOf team(threads());
    return cpu::scratch_of(params);
  }
  std::unique_ptr<DeviceMemory> take(int64_t bytes) const override {
    const TeamOf team(threads());
    return cpu_memory(bytes, limits());
  }
  void run(const OpParams& params, const Operands& operands, DeviceMemory& memory) const override {
    const TeamOf team(threads());
    const Pointers pointers(operands, memory);
    cpu::run_op(params, pointers.call());
  }

  std::vector<OpParams> measured_shapes() const override { return calibration_shapes(); }
  std::vector<OpTiming> measure() const override {
    const TeamOf team(threads());
    return calibrate_cpu();
  }

 private:
  const int threads_;
};

}  // namespace

std::unique_ptr<DeviceMemory> cpu_memory(int64_t bytes, const Limits& limits) {
  return std::make_unique<CpuMemory>(bytes, limits);
}

const Device& cpu_device(int threads) {
  static std::mutex mutex;
  static std::map<int, CpuDevice> devices;
  const std::lock_guard lock(mutex);
  return devices.try_emplace(threads, threads).first->second;
}

std::string cpu_isa() {
#if defined(__AVX512F__)
  return "AVX-512";
#else
  return "AVX2";
#endif
}

std::string cpu_kernels() {
  return fmt::format("{}, {} lanes{}", cpu_isa(), cpu::kLanes,
                     cpu::kMultipliesBf16 ? ", bf16 products" : "");
}

}  // namespace ebb
