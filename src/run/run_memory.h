// The memory of a set of plans: the device's, and what lies beyond the lanes that they use.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "plan/machine.h"
#include "plan/plan.h"

namespace ebb {

class RunMemory {
 public:
  // Takes all of it. Fails as the device and the lanes do. The plans outlive it.
  RunMemory(const PlanSet& plans, const Machine& machine);

  const Limits& limits() const { return limits_; }
  DeviceMemory& device() { return *device_; }
  const DeviceMemory& device() const { return *device_; }
  Lane& lane(Home home) const;

  // Bytes of a buffer from `first` on, wherever it lives. Between runs.
  void read(void* to, const Plan& plan, Buf b, int64_t first, int64_t bytes) const;
  void write(const Plan& plan, Buf b, int64_t first, const void* from, int64_t bytes);
  void move(const Plan& to_plan, Buf to, const Plan& from_plan, Buf from);  // a whole buffer

  // Where the host reaches a buffer by itself; empty where it does not.
  std::span<std::byte> host(const Plan& plan, Buf b) const;

 private:
  Limits limits_;
  std::unique_ptr<DeviceMemory> device_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // null: not used
};

}  // namespace ebb
