#include "train/plan_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "plan/packing.h"

namespace ebb {

void print_memory(const PlannedRun& planned, int64_t budget_bytes) {
  fmt::print("memory:");
  const Ledger& ledger = planned.step_plan().ledger;
  for (int i = 0; i < kPurposes; ++i) {
    if (ledger.purpose[i] == 0) continue;
    fmt::print(" {} {},", purpose_name(static_cast<Purpose>(i)), format_size(ledger.purpose[i]));
  }
  fmt::print(" outside {} = {} of {}\n", format_size(planned.outside_bytes),
             format_size(planned.process_bytes()), format_size(budget_bytes));
  if (planned.plans.disk_bytes > 0) {
    fmt::print("on disk: {}\n", format_size(planned.plans.disk_bytes));
  }
}

void print_techniques(const DitConfig& config, const PlannedRun& planned) {
  std::string line;
  for (const TechniqueUse& use : techniques_in_use(config, planned.step)) {
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", use.name, use.setting);
  }
  fmt::print("techniques: {}; predicted step {}\n", line.empty() ? "none needed" : line,
             format_seconds(planned.seconds));
}

void print_blocks(const DitConfig& config, const Schedule& schedule) {
  const std::vector<BlockChoice> choices = block_choices(schedule, config.depth());
  for (size_t first = 0, last = 0; first < choices.size(); first = last + 1) {
    last = first;
    while (last + 1 < choices.size() && choices[last + 1] == choices[first]) ++last;
    const std::string name = first == last ? fmt::format("block{}", first)
                                           : fmt::format("block{} .. block{}", first, last);
    const std::string times = choices[first].forwards > 1
                                  ? fmt::format(", forward {} times", choices[first].forwards)
                                  : "";
    fmt::print("  {:<20} recomputes {}{}\n", name, choices[first].keep.recomputed(), times);
  }
}

std::vector<PeakShare> peak_shares(const Plan& plan) {
  std::vector<PeakShare> shares;
  for (const auto& [layer, bytes] : plan.ledger.layer) {
    for (int i = 0; i < kPurposes; ++i) {
      if (bytes[i] > 0) shares.push_back({static_cast<Purpose>(i), layer, bytes[i]});
    }
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const PeakShare& a, const PeakShare& b) { return a.bytes > b.bytes; });
  return shares;
}

std::array<PurposePeak, kPurposes> purpose_peaks(const Plan& plan) {
  const auto ops = static_cast<int>(plan.program.ops.size());
  std::array<PurposePeak, kPurposes> peaks;
  for (int purpose = 0; purpose < kPurposes; ++purpose) {
    std::vector<int64_t> change(ops + 1);
    for (size_t i = 0; i < plan.held.size(); ++i) {
      const Buffer& b = plan.program.buffers[i];
      if (static_cast<int>(b.purpose) != purpose || plan.held[i].empty()) continue;
      change[plan.held[i].begin] += aligned(b.bytes());
      change[plan.held[i].end] -= aligned(b.bytes());
    }
    int64_t live = 0;
    for (int op = 0; op < ops; ++op) {
      live += change[op];
      if (live > peaks[purpose].bytes) peaks[purpose] = {op, live};
    }
  }
  return peaks;
}

}  // namespace ebb
