#include "train/budget.h"

#include <fmt/format.h>

#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu/device.h"
#include "run/process.h"

namespace ebb {

int64_t measure_outside_bytes() {
  warm_up_cpu();
  // A fresh high-water mark: what was taken and given back before does not count.
  std::ofstream("/proc/self/clear_refs") << "5";
  warm_up_cpu();
  // What the program still takes by itself: log lines, names, one picture being encoded.
  constexpr int64_t kReserve = 2 << 20;
  return process_peak_bytes() - warm_up_bytes() + kReserve;
}

int64_t default_budget_bytes() { return available_memory_bytes() / 5 * 4; }

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
