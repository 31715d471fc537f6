// What moves bytes beside the ops: between a device's memory and another home, such as a disk.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "program/device.h"

namespace ebb {

// Transfers are carried out in the order in which they begin. One thread asks.
class Lane {
 public:
  virtual ~Lane() = default;

  // From `offset` of the far side into the device's memory, and back. The place is the transfer's
  // until wait() returns, which fails as the transfer did, or one before it.
  using Ticket = int64_t;
  virtual Ticket fetch(DeviceMemory& memory, Place to, int64_t offset, int64_t bytes) = 0;
  virtual Ticket store(DeviceMemory& memory, Place from, int64_t offset, int64_t bytes) = 0;
  virtual void wait(Ticket ticket) = 0;

  // At once, for the host.
  virtual void read(void* to, int64_t offset, int64_t bytes) = 0;
  virtual void write(const void* from, int64_t offset, int64_t bytes) = 0;
};

// A lane as a plan knows it, and how a run opens it.
struct LaneKind {
  std::string name;                                          // "disk"
  double fetch_rate = 1e9, store_rate = 1e9;                 // bytes per second
  int64_t most_bytes = std::numeric_limits<int64_t>::max();  // that the far side holds
  int64_t memory_bytes = 0;  // of the host, that transfers go through
  std::string where;         // what the user named: a directory

  // Of `bytes` zeros on the far side; `memory` outlives it. Not set: of another machine.
  std::function<std::unique_ptr<Lane>(int64_t bytes, std::span<std::byte> memory)> open;

  // That a transfer which begins keeps the lane busy for.
  double seconds(const Transfer& transfer) const {
    const auto bytes = static_cast<double>(transfer.n * dtype_bytes(transfer.type));
    return transfer.begins() ? bytes / (transfer.fetches() ? fetch_rate : store_rate) : 0;
  }
};

// What the disk's transfers go through: files are read and written in whole blocks.
inline constexpr int64_t kDiskMemory = 4 << 20;

}  // namespace ebb
