// An op's operands as pointers, where the host reaches the memory that they lie in.
#pragma once

#include <array>

#include "base/error.h"
#include "kernels/cpu/call.h"
#include "program/device.h"

namespace ebb {

class Pointers {
 public:
  Pointers(const Operands& operands, const DeviceMemory& memory) {
    const auto at = [&](Place place) { return memory.host(place.piece) + place.offset; };
    require(operands.reads.size() <= kMost && operands.writes.size() <= kMost &&
                operands.updates.size() <= kMost,
            "cpu: an op has more than {} operands of a kind", kMost);
    for (size_t i = 0; i < operands.reads.size(); ++i) reads_[i] = at(operands.reads[i]);
    for (size_t i = 0; i < operands.writes.size(); ++i) writes_[i] = at(operands.writes[i]);
    for (size_t i = 0; i < operands.updates.size(); ++i) updates_[i] = at(operands.updates[i]);
    call_.reads = {reads_.data(), operands.reads.size()};
    call_.writes = {writes_.data(), operands.writes.size()};
    call_.updates = {updates_.data(), operands.updates.size()};
    if (operands.scratch_bytes > 0) {
      call_.scratch = {at(operands.scratch), static_cast<size_t>(operands.scratch_bytes)};
    }
    call_.scalars = operands.scalars;
    call_.iteration = operands.iteration;
  }
  const Call& call() const { return call_; }

 private:
  static constexpr size_t kMost = 16;
  std::array<const std::byte*, kMost> reads_;
  std::array<std::byte*, kMost> writes_, updates_;
  Call call_;
};

}  // namespace ebb
