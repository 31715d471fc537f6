#include "run/run_memory.h"

#include <malloc.h>

#include "base/error.h"
#include "program/offload.h"

namespace ebb {

RunMemory::RunMemory(const PlanSet& plans, const Machine& machine) : limits_(plans.limits) {
  malloc_trim(0);  // planning took memory and gave it back: to the allocator, which keeps it
  device_ = machine.device->take(plans.arena_bytes);
  lanes_.resize(machine.lanes.size());
  for (const Plan& plan : plans.plans) {
    for (size_t i = 0; i < plan.away_bytes.size(); ++i) {
      if (lanes_[i] || plans.away_bytes[i] == 0) continue;
      const LaneKind& kind = machine.lanes[i];
      const Buf memory = plan.program.find(lane_memory(static_cast<Home>(i)));
      if (!memory && kind.memory_bytes > 0) continue;
      require(static_cast<bool>(kind.open), "lane {} is of another machine", kind.name);
      lanes_[i] =
          kind.open(plans.away_bytes[i], memory ? host(plan, memory) : std::span<std::byte>{});
    }
  }
}

Lane& RunMemory::lane(Home home) const {
  require(home >= 0 && home < std::ssize(lanes_) && lanes_[home] != nullptr,
          "memory: lane {} is not open", home);
  return *lanes_[home];
}

void RunMemory::read(void* to, const Plan& plan, Buf b, int64_t first, int64_t bytes) const {
  const Buffer& buffer = plan.program.buffer(b);
  const int64_t at = plan.offsets[b.id] + first;
  buffer.away() ? lane(buffer.home).read(to, at, bytes)
                : device_->read(to, limits_.place(at), bytes);
}

void RunMemory::write(const Plan& plan, Buf b, int64_t first, const void* from, int64_t bytes) {
  const Buffer& buffer = plan.program.buffer(b);
  const int64_t at = plan.offsets[b.id] + first;
  buffer.away() ? lane(buffer.home).write(from, at, bytes)
                : device_->write(limits_.place(at), from, bytes);
}

void RunMemory::move(const Plan& to_plan, Buf to, const Plan& from_plan, Buf from) {
  const int64_t bytes = from_plan.program.buffer(from).bytes();
  require(to_plan.program.buffer(to).bytes() == bytes, "memory: {} bytes into {}", bytes,
          to_plan.program.buffer(to).name);
  device_->move(limits_.place(to_plan.offsets[to.id]), limits_.place(from_plan.offsets[from.id]),
                bytes);
}

std::span<std::byte> RunMemory::host(const Plan& plan, Buf b) const {
  const Place place = limits_.place(plan.offsets[b.id]);
  std::byte* piece = plan.program.buffer(b).away() ? nullptr : device_->host(place.piece);
  if (piece == nullptr) return {};
  return {piece + place.offset, static_cast<size_t>(plan.program.buffer(b).bytes())};
}

}  // namespace ebb
