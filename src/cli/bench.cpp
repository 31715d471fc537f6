#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/resolve.h"
#include "base/error.h"
#include "base/median.h"
#include "base/text.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "kernels/cpu/device.h"
#include "machine/process.h"
#include "report/op_shares.h"
#include "train/session.h"

namespace ebb {

namespace {

template <typename Body>
double seconds_of(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct GemmShape {
  GemmRole role;
  int64_t R, K, N;
  auto operator<=>(const GemmShape&) const = default;
  double flops() const { return 2.0 * R * K * N; }
  int64_t floats() const { return R * K + N * K + R * N; }
};

// How often each GEMM shape occurs in the step.
std::map<GemmShape, int64_t> gemm_shapes(const Program& program) {
  std::map<GemmShape, int64_t> shapes;
  const std::vector<int64_t> times = program.repeats();
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpParams& params = program.ops[i].params;
    if (const auto* p = std::get_if<Linear>(&params)) {
      shapes[{GemmRole::forward, p->R, p->K, p->N}] += times[i];
    } else if (const auto* q = std::get_if<LinearBackwardInput>(&params)) {
      shapes[{GemmRole::backward_input, q->R, q->K, q->N}] += times[i];
    } else if (const auto* r = std::get_if<LinearBackwardParams>(&params)) {
      shapes[{GemmRole::backward_weight, r->R, r->K, r->N}] += times[i];
    }
  }
  return shapes;
}

class Bench {
 public:
  Bench(const TrainOptions& options, const PlannedRun& planned, const Machine& machine,
        bool profiled)
      : o_(options),
        planned_(planned),
        machine_(machine),
        session_(options.config, planned, machine,
                 profiled ? Executor::Mode::timed : Executor::Mode::normal),
        shapes_(gemm_shapes(planned.step_plan().program)) {
    if (profiled) profile_.emplace(planned.step_plan().program, machine.costs);
    session_.initialise(1);
  }

  // Steps, GEMMs and measurements of the machine in turn, so that a noisy one disturbs all alike.
  // `again`: how to measure the machine, or null.
  void run(int64_t rounds, const MeasureOptions* again) {
    run_step(0);  // first touches and lazily made threads
    run_step(1);
    peak_ = process_peak_bytes();  // of training alone: the GEMMs to compare with take memory too
    for (const auto& [shape, count] : shapes_) run_gemm(shape);  // oneDNN compiles kernels
    for (int64_t round = 2; round < rounds + 2; ++round) {
      step_seconds_.push_back(run_step(round));
      if (profile_) profile_->add(session_.step().timeline());
      for (const auto& [shape, count] : shapes_) gemm_seconds_[shape].push_back(run_gemm(shape));
      if (again == nullptr) continue;
      predicted_seconds_.push_back(
          predicted_seconds(planned_.step_plan().program, measured_again(machine_, *again)));
    }
  }

  double step_seconds() const { return median(step_seconds_); }

  void report(bool json) const {
    const double step = step_seconds();
    double gemm_flops = 0;
    double gemm_time = 0;
    for (const auto& [shape, count] : shapes_) {
      gemm_flops += static_cast<double>(count) * shape.flops();
      gemm_time += static_cast<double>(count) * median(gemm_seconds_.at(shape));
    }
    const double model =
        model_flops_per_sample(o_.config) * static_cast<double>(o_.step.batch) / step * 1e-9;
    const double sgemm = gemm_flops / gemm_time * 1e-9;
    if (json) {
      nlohmann::ordered_json j;
      j["model"] = o_.name;
      j["batch"] = o_.step.batch;
      j["tokens"] = o_.config.tokens();
      j["step_seconds"] = step;
      j["model_gflops"] = model;
      j["sgemm_gflops"] = sgemm;
      j["of_sgemm"] = model / sgemm;
      j["process_peak_bytes"] = peak_;
      j["predicted_step_seconds"] = planned_.seconds;
      if (!predicted_seconds_.empty()) j["recalibrated_step_seconds"] = median(predicted_seconds_);
      j["planned_process_bytes"] = planned_.process_bytes();
      j["threads"] = machine_.device->threads();
      j["isa"] = cpu_isa();
      if (profile_) j["profile"] = profile_->json(measure_limits());
      fmt::print("{}\n", j.dump(2));
      return;
    }
    fmt::print("{} batch {}, {} tokens, {} threads, {}\n", o_.name, o_.step.batch,
               o_.config.tokens(), machine_.device->threads(), cpu_isa());
    fmt::print("  step   {:>10}   {}, {} predicted\n", format_seconds(step),
               format_rate(static_cast<double>(o_.step.batch) / step),
               format_seconds(planned_.seconds));
    if (!predicted_seconds_.empty()) {
      fmt::print("         {:>10}   predicted, for the machine as it was between the steps\n",
                 format_seconds(median(predicted_seconds_)));
    }
    fmt::print("  model  {:>7.1f} GFLOP/s\n  sgemm  {:>7.1f} GFLOP/s at the step's own shapes\n",
               model, sgemm);
    fmt::print("  ratio  {:>7.3f}\n", model / sgemm);
    fmt::print("  peak   {:>10} of the process, {} planned\n", format_size(peak_),
               format_size(planned_.process_bytes()));
    if (profile_) fmt::print("{}", profile_->text(measure_limits()));
  }

 private:
  double run_step(int64_t k) {
    const std::span<float> x = session_.host<float>(kBatchX);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * (static_cast<float>(i % 101) - 50);
    if (o_.config.classes > 0) {
      const std::span<int32_t> y = session_.host<int32_t>(kBatchY);
      for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int32_t>(i % o_.config.classes);
    }
    const Scalars scalars = step_scalars(o_, k, k);
    return seconds_of([&] { session_.step().run(scalars); });
  }

  // In memory of its own, taken after the peak of training was read.
  static double run_gemm(const GemmShape& s) {
    const std::unique_ptr<float[]> operands(new float[s.floats()]);
    float* a = operands.get();
    for (int64_t i = 0; i < s.floats(); ++i) a[i] = 0.01f * static_cast<float>(i % 101 - 50);
    const int64_t a_floats = s.role == GemmRole::forward ? s.R * s.K : s.R * s.N;
    const int64_t b_floats = s.role == GemmRole::backward_weight ? s.R * s.K : s.N * s.K;
    float* b = a + a_floats;
    float* c = b + b_floats;
    return seconds_of([&] { plain_sgemm(s.role, s.R, s.K, s.N, a, b, c); });
  }

  const TrainOptions& o_;
  const PlannedRun& planned_;
  const Machine& machine_;
  Session session_;
  const std::map<GemmShape, int64_t> shapes_;
  std::vector<double> step_seconds_, predicted_seconds_;
  std::map<GemmShape, std::vector<double>> gemm_seconds_;
  std::optional<StepProfile> profile_;
  int64_t peak_ = 0;
};

}  // namespace

int run_bench(Settings s) {
  const MeasuredMachine measured = resolve_machine(s);
  const Machine& machine = inside(measured);
  s.sample_every = 0;
  const DitConfig config = resolve_model(s, nullptr);
  TrainOptions options = resolve_training(s, config, nullptr);
  options.budget_bytes = resolve_budget(s, measured);
  const PlannedRun planned = plan_fitting_run(run_spec(options, nullptr), machine);
  const MeasureOptions again = measuring(measure_options(s));
  Bench bench(options, planned, machine, s.profile);
  bench.run(s.rounds, s.recalibrate ? &again : nullptr);
  bench.report(s.json);
  // The disk has a pace of its own.
  if (!planned.step.choices.offload.any()) {
    learn_from_steps(bench.step_seconds(), planned.seconds, machine, again);
  }
  return 0;
}

}  // namespace ebb
