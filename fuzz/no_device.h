// A device for those who only look at programs.
#pragma once

#include <cstdlib>

#include "program/device.h"

namespace ebb {

// Nothing runs here.
class NoDevice final : public Device {
 public:
  std::string identity() const override { return "none"; }
  std::string kernels() const override { return "none"; }
  int threads() const override { return 1; }
  int64_t scratch_bytes(const OpParams&) const override { return 0; }
  std::unique_ptr<DeviceMemory> take(int64_t) const override { std::abort(); }
  void run(const OpParams&, const Operands&, DeviceMemory&) const override { std::abort(); }
  std::vector<OpParams> measured_shapes() const override { return {}; }
  std::vector<OpTiming> measure() const override { return {}; }
};

}  // namespace ebb
