#include "kernels/cpu/device.h"

#include <vector>

#include "base/error.h"
#include "kernels/cpu/kernels.h"

namespace ebb {

void cpu::run(const Transfer&, const Call&) { throw Bug("transfer: given to the CPU"); }

namespace {

class CpuDevice final : public Device {
 public:
  int64_t scratch_bytes(const OpParams& params) const override {
    return std::visit([](const auto& op) { return cpu::scratch(op); }, params);
  }
  void run(const OpParams& params, const Call& call) const override {
    std::visit([&](const auto& op) { cpu::run(op, call); }, params);
  }
};

}  // namespace

const Device& cpu_device() {
  static const CpuDevice device;
  return device;
}

std::string cpu_isa() {
#if defined(__AVX512F__)
  return "AVX-512";
#else
  return "AVX2";
#endif
}

}  // namespace ebb
