#include <fmt/format.h>

#include "base/text.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "machine/budget.h"

namespace ebb {

namespace {

void print_machine(const Machine& machine) {
  const auto rate = [&](const OpParams& op) {
    const double flops = std::visit([](const auto& each) { return each.flops(); }, op);
    return flops / machine.costs.seconds(op) * 1e-9;
  };
  const auto row = [](const char* what, const std::string& value, const std::string& why = "") {
    fmt::print("  {:<12} {}{}\n", what, value, why.empty() ? "" : "   " + why);
  };
  constexpr int64_t kRows = 2048, kWidth = 384;
  const AddTo copied{1 << 20};
  fmt::print("{}\n", machine.calibration.machine);
  row("products", fmt::format("{:.0f} GFLOP/s", rate(Linear{kRows, kWidth, 4 * kWidth})),
      fmt::format("of {} x {} by {} x {}, as a step finds them", kRows, kWidth, kWidth,
                  4 * kWidth));
  row("sums",
      fmt::format("{:.0f} GB/s",
                  static_cast<double>(bytes_moved(copied)) / machine.costs.seconds(copied) * 1e-9),
      "of arrays of 4 MiB, as a step finds them");
  row("available", format_size(machine.available_bytes),
      fmt::format("{} of it by default", format_size(default_budget_bytes(machine))));
  row("outside", format_size(machine.outside_bytes),
      "of a process besides its plan: code, libraries, threads, a reserve");
  for (const LaneKind& lane : machine.lanes) {
    row(lane.name.c_str(),
        fmt::format("reads {:.2f}, writes {:.2f} GB/s", lane.fetch_rate * 1e-9,
                    lane.store_rate * 1e-9),
        printable(lane.where));
  }
  fmt::print("  pace {:.2f}: what whole steps took over what their parts take; {} measurements\n",
             machine.costs.pace(), machine.calibration.points.size());
}

}  // namespace

int run_machine(Settings s) {  // NOLINT(performance-unnecessary-value-param): as every verb
  const MeasuredMachine machine = resolve_machine(s);
  if (s.json) {
    fmt::print("{}\n", machine.json());
  } else {
    print_machine(inside(machine));
  }
  return 0;
}

}  // namespace ebb
