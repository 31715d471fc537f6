#include "run/run_memory.h"

#include "program/offload.h"

namespace ebb {

RunMemory::RunMemory(const PlanSet& plans, const std::filesystem::path& directory)
    : arena_(plans.arena_bytes) {
  if (plans.disk_bytes == 0) return;
  for (const Plan& plan : plans.plans) {
    const Buf memory = plan.program.find(kTransferMemory);
    if (!memory) continue;
    std::byte* place = arena_.data() + plan.offsets[memory.id];
    disk_.emplace(directory, plans.disk_bytes,
                  std::span(place, static_cast<size_t>(kTransferBytes)));
    return;
  }
}

}  // namespace ebb
