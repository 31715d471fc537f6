#include "report/op_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "base/median.h"
#include "base/text.h"
#include "kernels/cpu/device.h"

namespace ebb {

namespace {

template <typename AnyOp>
std::string shape_text(const AnyOp& op) {
  if constexpr (requires { op.R, op.K, op.N; }) {
    return fmt::format("{} x {} to {}", op.R, op.K, op.N);
  } else if constexpr (requires { op.T, op.H, op.d; }) {
    return fmt::format("{} x {} heads x {} tokens x {}", op.B, op.H, op.T, op.d);
  }
  return "";
}

template <typename Body>
double best_of(int rounds, Body body) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

}  // namespace

MachineLimits measure_limits() {
  constexpr int64_t kSide = 1152, kCopied = 16 << 20;
  constexpr int kRounds = 7;
  std::vector<float> memory(std::max(3 * kSide * kSide, 2 * kCopied), 0.5f);
  float* a = memory.data();
  const double gemm = best_of(kRounds, [&] {
    plain_sgemm(GemmRole::forward, kSide, kSide, kSide, a, a + kSide * kSide,
                a + 2 * kSide * kSide);
  });
  const double copy = best_of(kRounds, [&] { plain_copy(a + kCopied, a, kCopied); });
  return {2.0 * kSide * kSide * kSide / gemm, 2.0 * sizeof(float) * kCopied / copy};
}

double MachineLimits::bound(double flops, double bytes) const {
  return std::max(flops / flops_per_second, bytes / bytes_per_second);
}

bool MachineLimits::by_flops(double flops, double bytes) const {
  return flops / flops_per_second > bytes / bytes_per_second;
}

std::string op_shape(const OpParams& params) {
  return std::visit([](const auto& op) { return shape_text(op); }, params);
}

void StepProfile::add(const std::vector<TimelinePoint>& timeline) {
  seconds_.resize(timeline.size());
  for (size_t i = 0; i < timeline.size(); ++i) seconds_[i].push_back(timeline[i].seconds);
}

std::vector<StepProfile::Row> StepProfile::rows() const {
  const std::vector<int64_t> times = program_.repeats();
  std::map<std::pair<std::string, std::string>, Row> found;
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    const Op& op = program_.ops[i];
    const std::string shape = op_shape(op.params);
    Row& row = found[{op.kind(), shape}];
    row.kind = op.kind();
    row.shape = shape;
    row.calls += times[i];
    row.seconds += median(seconds_[i]);
    row.predicted += static_cast<double>(times[i]) * costs_.seconds(op.params);
    row.flops += static_cast<double>(times[i]) * op.flops();
    row.bytes += static_cast<double>(times[i] * bytes_moved(op.params));
  }
  std::vector<Row> sorted;
  for (auto& [key, row] : found) sorted.push_back(std::move(row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return sorted;
}

nlohmann::ordered_json StepProfile::json(const MachineLimits& limits) const {
  auto list = nlohmann::ordered_json::array();
  for (const Row& row : rows()) {
    list.push_back({{"op", row.kind},
                    {"shape", row.shape},
                    {"calls", row.calls},
                    {"seconds", row.seconds},
                    {"predicted_seconds", row.predicted},
                    {"gflops", row.flops / row.seconds * 1e-9},
                    {"gbytes_per_second", row.bytes / row.seconds * 1e-9},
                    {"limit", limits.by_flops(row.flops, row.bytes) ? "flops" : "bytes"},
                    {"of_limit", limits.bound(row.flops, row.bytes) / row.seconds}});
  }
  return {{"flops_limit", limits.flops_per_second},
          {"bytes_limit", limits.bytes_per_second},
          {"ops", list}};
}

std::string StepProfile::text(const MachineLimits& limits) const {
  const std::vector<Row> all = rows();
  double total = 0, least = 0;
  for (const Row& row : all) {
    total += row.seconds;
    least += limits.bound(row.flops, row.bytes);
  }
  std::string text = fmt::format(
      "\n  the machine does {:.1f} GFLOP/s and moves {:.1f} GB/s; what fits in its caches can "
      "be above\n\n",
      limits.flops_per_second * 1e-9, limits.bytes_per_second * 1e-9);
  text += fmt::format("  {:>10} {:>6} {:>9} {:>6} {:>8} {:>6} {:>9}  op\n", "time", "share",
                      "predicted", "calls", "GFLOP/s", "GB/s", "of limit");
  for (const Row& row : all) {
    text += fmt::format(
        "  {:>10} {:>5.1f}% {:>9} {:>6} {:>8.1f} {:>6.1f} {:>4.2f} {}  {} {}\n",
        format_seconds(row.seconds), 100 * row.seconds / total, format_seconds(row.predicted),
        row.calls, row.flops / row.seconds * 1e-9, row.bytes / row.seconds * 1e-9,
        limits.bound(row.flops, row.bytes) / row.seconds,
        limits.by_flops(row.flops, row.bytes) ? "FLOP" : "byte", row.kind, row.shape);
  }
  return text + fmt::format("  {:>10}  in all; {} if every op were at its limit\n",
                            format_seconds(total), format_seconds(least));
}

}  // namespace ebb
