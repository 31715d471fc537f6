#include "run/run_memory.h"

#include <malloc.h>

#include "program/offload.h"

namespace ebb {

namespace {

// Planning took memory and gave it back: to the allocator, which keeps it.
int64_t after_planning(int64_t bytes) {
  malloc_trim(0);
  return bytes;
}

}  // namespace

RunMemory::RunMemory(const PlanSet& plans, const std::filesystem::path& directory)
    : arena_(after_planning(plans.arena_bytes)) {
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
