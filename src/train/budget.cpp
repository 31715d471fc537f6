#include "train/budget.h"

#include <fmt/format.h>
#include <malloc.h>

#include <fstream>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "kernels/cpu/device.h"
#include "run/process.h"

namespace ebb {

namespace {

// Every linear layer once, by width. Where oneDNN packs by itself, with as many rows as a short run
// allows: packing memory grows with the width, and hardly with the rows past a few hundred.
std::vector<Linear> linear_widths(const PlanSet& plans) {
  const int64_t multiply_adds = cpu_packs_by_itself() ? 600'000'000 : 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> rows;
  for (const Plan& plan : plans.plans) {
    for (const Op& op : plan.program.ops) {
      const auto* p = std::get_if<Linear>(&op.params);
      if (p == nullptr) continue;
      int64_t& most = rows[{p->K, p->N}];
      most = std::max(most, std::min(p->R, 128 + multiply_adds / (p->K * p->N)));
    }
  }
  std::vector<Linear> shapes;
  for (const auto& [width, R] : rows) shapes.push_back({R, width.first, width.second});
  return shapes;
}

}  // namespace

int64_t measure_outside_bytes(const PlanSet& plans) {
  forget_cpu_kernels();
  for (const Plan& plan : plans.plans) {
    for (const Op& op : plan.program.ops) prepare_cpu(op.params);
  }
  malloc_trim(0);  // what planning took and gave back
  int64_t peak = process_resident_bytes();
  for (const Linear& shape : linear_widths(plans)) {
    // A fresh high-water mark: what was taken and given back before does not count.
    std::ofstream("/proc/self/clear_refs") << "5";
    const int64_t own = warm_up_cpu(shape);
    peak = std::max(peak, process_peak_bytes() - own);
  }
  // What the program still takes by itself: log lines, names, one picture being encoded.
  constexpr int64_t kReserve = 4 << 20;
  // Packing memory is measured on fewer rows than the step has, and the heap keeps holes of it.
  constexpr int64_t kPackingReserve = 4 << 20;
  const int64_t bytes = peak + kReserve + (cpu_packs_by_itself() ? kPackingReserve : 0);
  // One process measures some pages more than another. In whole steps, equal runs nearly always
  // measure the same, and so choose the same plan.
  return (bytes + kMeasuringSlack - 1) / kMeasuringSlack * kMeasuringSlack;
}

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
