#include "train/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "run/process.h"

namespace ebb {

int64_t default_budget_bytes() { return available_memory_bytes() / 5 * 4; }

int64_t header_limit(int64_t budget_bytes) {
  return std::min(SafetensorsReader::kMaxHeaderBytes, budget_bytes / 8);
}

void check_budget(int64_t arena_bytes, int64_t outside_bytes, int64_t budget_bytes,
                  const std::string& what, const std::string& hint) {
  const int64_t needed = arena_bytes + outside_bytes;
  if (needed <= budget_bytes) return;
  fail(Exit::budget,
       fmt::format("plan: {} needs {} ({} arena, {} outside it), over --memory {}", what,
                   format_size(needed), format_size(arena_bytes), format_size(outside_bytes),
                   format_size(budget_bytes)),
       hint);
}

}  // namespace ebb
