#include "kernels/cpu/device.h"

#include <omp.h>
#include <sched.h>

#include <vector>

#include "kernels/cpu/kernels.h"

namespace ebb {

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

void set_cpu_threads(int threads) { omp_set_num_threads(threads); }

int cpu_threads() { return omp_get_max_threads(); }

void start_cpu_threads() {
#pragma omp parallel
  {}
}

void end_cpu_threads() { omp_pause_resource_all(omp_pause_hard); }

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return omp_get_num_procs();
  return CPU_COUNT(&set);
}

std::string cpu_isa() {
#if defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "vectors of 32 bytes";
#endif
}

bool cpu_has_fp16() {
#if defined(__F16C__) || defined(__AVX512F__)
  return true;
#else
  return false;
#endif
}

}  // namespace ebb
