// A second lane: from the device's memory to other memory, of a size and at a speed that a test
// sets.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "program/lane.h"

namespace ebb {

class MemoryLane final : public Lane {
 public:
  explicit MemoryLane(int64_t bytes) : far_(bytes) {}

  Ticket fetch(DeviceMemory& memory, Place to, int64_t offset, int64_t bytes) override {
    memory.write(to, at(offset, bytes), bytes);
    return ++moved_;
  }
  Ticket store(DeviceMemory& memory, Place from, int64_t offset, int64_t bytes) override {
    memory.read(at(offset, bytes), from, bytes);
    return ++moved_;
  }
  void wait(Ticket ticket) override { require(ticket <= moved_, "lane: no transfer {}", ticket); }
  void read(void* to, int64_t offset, int64_t bytes) override {
    std::memcpy(to, at(offset, bytes), bytes);
  }
  void write(const void* from, int64_t offset, int64_t bytes) override {
    std::memcpy(at(offset, bytes), from, bytes);
  }

 private:
  std::byte* at(int64_t offset, int64_t bytes) {
    require(offset >= 0 && offset + bytes <= static_cast<int64_t>(far_.size()),
            "lane: bytes {} to {} of {}", offset, offset + bytes, far_.size());
    return far_.data() + offset;
  }
  std::vector<std::byte> far_;
  Ticket moved_ = 0;
};

inline LaneKind memory_lane(int64_t most_bytes, double rate) {
  LaneKind lane;
  lane.name = "memory";
  lane.fetch_rate = lane.store_rate = rate;
  lane.most_bytes = most_bytes;
  lane.open = [=](int64_t bytes, std::span<std::byte>) {
    require(bytes <= most_bytes, "lane: {} bytes, at most {}", bytes, most_bytes);
    return std::make_unique<MemoryLane>(bytes);
  };
  return lane;
}

}  // namespace ebb
