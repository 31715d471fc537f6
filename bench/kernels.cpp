// Every kernel by itself: seconds, GFLOP/s, GB/s, and the fraction of the limit that holds it.
//   ebb_kernels --benchmark_filter=attention
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "base/text.h"
#include "kernels/cpu/calibrate.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/trial.h"
#include "plan/cost.h"
#include "report/op_shares.h"

namespace {

using namespace ebb;

// The linear layers and the attention of a model; the other ops of the calibration's largest size.
std::vector<OpParams> model_shapes(int64_t B, int64_t T, int64_t D, int64_t H) {
  std::vector<OpParams> shapes;
  const int64_t R = B * T;
  for (const auto& [K, N] :
       {std::pair{D, 3 * D}, std::pair{D, D}, std::pair{D, 4 * D}, std::pair{4 * D, D}}) {
    shapes.push_back(Linear{R, K, N});
    shapes.push_back(LinearBackwardInput{R, K, N});
    shapes.push_back(LinearBackwardParams{R, K, N});
  }
  shapes.push_back(Attention{B, T, H, D / H});
  shapes.push_back(AttentionBackward{B, T, H, D / H});
  return shapes;
}

std::vector<OpParams> shapes() {
  std::vector<OpParams> all = calibration_shapes();
  for (const auto& [B, T, D, H] :
       {std::tuple{8, 256, 384, 6}, std::tuple{2, 1024, 384, 6}, std::tuple{1, 4096, 384, 6},
        std::tuple{32, 64, 384, 6}, std::tuple{8, 256, 768, 12}, std::tuple{4, 256, 1152, 16}}) {
    const std::vector<OpParams> more = model_shapes(B, T, D, H);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::string label(const OpParams& params) {
  const std::string shape = op_shape(params);
  const char* kind = std::visit([](const auto& op) { return op.kName; }, params);
  return fmt::format("{}/{}", kind, shape.empty() ? format_size(bytes_moved(params)) : shape);
}

void measure(benchmark::State& state, const OpParams& params, const MachineLimits& limits) {
  const cpu::Trial trial(params);
  const cpu::Pages pages(trial.bytes(), cpu::Pages::Size::huge);
  trial.run(pages.data());
  double seconds = 0;
  for (auto _ : state) {
    const double taken = trial.run(pages.data());
    state.SetIterationTime(taken);
    seconds += taken;
  }
  const auto runs = static_cast<double>(state.iterations());
  const double flops = runs * std::visit([](const auto& op) { return op.flops(); }, params);
  const double bytes = runs * static_cast<double>(bytes_moved(params));
  state.counters["GFLOP/s"] = flops / seconds * 1e-9;
  state.counters["GB/s"] = bytes / seconds * 1e-9;
  state.counters["of_limit"] = limits.bound(flops, bytes) / seconds;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const MachineLimits limits = measure_limits();
  for (const OpParams& params : shapes()) {
    benchmark::RegisterBenchmark(label(params).c_str(), [params, limits](auto& state) {
      measure(state, params, limits);
    })->UseManualTime();
  }
  benchmark::RunSpecifiedBenchmarks();
}
