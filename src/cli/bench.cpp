#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "api/resolve.h"
#include "base/error.h"
#include "base/median.h"
#include "cli/bench_report.h"
#include "cli/ranks.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "comm/agreement.h"
#include "kernels/cpu/device.h"
#include "machine/process.h"
#include "plan/fastest_place.h"
#include "report/op_shares.h"
#include "train/rank_seconds.h"
#include "train/session.h"

namespace ebb {

namespace {

template <typename Body>
double seconds_of(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void make_values(std::span<float> x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * (static_cast<float>(i % 101) - 50);
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

// What a rank's step takes its samples from: all have the same values.
class MadeSamples final : public Feed {
 public:
  explicit MadeSamples(const DitConfig& config)
      : classes_(config.classes), sample_(values(config)) {
    make_values(sample_);
  }
  static int64_t held_bytes(const DitConfig& config) {
    return values(config) * static_cast<int64_t>(sizeof(float));
  }

  void take(DeviceMemory& memory, Place values, const Place* labels, int64_t first,
            int64_t count) override {
    const auto bytes = static_cast<int64_t>(sample_.size() * sizeof(float));
    for (int64_t i = 0; i < count; ++i) {
      memory.write({values.piece, values.offset + i * bytes}, sample_.data(), bytes);
      if (labels == nullptr) continue;
      const auto label = static_cast<int32_t>((first + i) % classes_);
      const auto each = static_cast<int64_t>(sizeof label);
      memory.write({labels->piece, labels->offset + i * each}, &label, each);
    }
  }

 private:
  static int64_t values(const DitConfig& config) { return config.channels * config.pixels(); }
  const int64_t classes_;
  std::vector<float> sample_;
};

class Bench {
 public:
  // Over ranks (`peers`) every one of them makes one and calls its functions.
  Bench(const TrainOptions& options, const PlannedRun& planned, const Machine& machine,
        bool profiled, Peers* peers)
      : o_(options),
        planned_(planned),
        machine_(machine),
        peers_(peers),
        session_(options.config, planned, machine,
                 profiled ? Executor::Mode::timed : Executor::Mode::normal),
        shapes_(gemm_shapes(planned.step_plan().program)) {
    if (profiled) profile_.emplace(planned.step_plan().program, machine.costs);
    session_.initialise(1);
    if (peers_ == nullptr) return;
    session_.step().exchange_with(*peers_);
    session_.step().take_from(samples_.emplace(options.config));
  }

  // Steps, GEMMs and measurements of the machine in turn, so that a noisy one disturbs all alike.
  // `again`: how to measure the machine, or null.
  void run(int64_t rounds, const MeasureOptions* again) {
    run_step(0);  // first touches and lazily made threads
    run_step(1);
    rank_seconds_.clear();
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

  // Of ranks the first alone has what all have measured.
  BenchReport report() const {
    BenchReport r;
    r.model = o_.name;
    r.batch = o_.step.batch;
    r.tokens = o_.config.tokens();
    r.threads = machine_.device->threads();
    r.isa = cpu_isa();
    r.model_flops = model_flops_per_sample(o_.config) * static_cast<double>(o_.step.batch);
    r.predicted_seconds = planned_.seconds;
    if (!predicted_seconds_.empty()) r.recalibrated_seconds = median(predicted_seconds_);
    if (profile_) r.profile = &*profile_;
    r.place = planned_.step.place;
    r.link = machine_.link;
    const RankBench own = own_bench();
    r.ranks = peers_ != nullptr ? told_by_all(*peers_, own) : std::vector<RankBench>{own};
    return r;
  }

 private:
  RankBench own_bench() const {
    RankBench own;
    own.step_seconds = step_seconds();
    own.sgemm_flops_per_second = sgemm_flops_per_second();
    own.peak_bytes = peak_;
    own.planned_bytes = planned_.process_bytes();
    if (peers_ == nullptr) return own;
    const auto middle = [&](double RankSeconds::*part) {
      std::vector<double> seconds;
      for (const RankSeconds& step : rank_seconds_) seconds.push_back(step.*part);
      return median(seconds);
    };
    own.seconds = {middle(&RankSeconds::computing), middle(&RankSeconds::waiting),
                   middle(&RankSeconds::exchanging)};
    own.sent_bytes = sent_bytes_;
    own.planned_sent_bytes = planned_.ranks[peers_->rank()].sent_bytes;
    return own;
  }

  double sgemm_flops_per_second() const {
    double flops = 0, seconds = 0;
    for (const auto& [shape, count] : shapes_) {
      flops += static_cast<double>(count) * shape.flops();
      seconds += static_cast<double>(count) * median(gemm_seconds_.at(shape));
    }
    return flops / seconds;
  }

  double run_step(int64_t k) {
    const Scalars scalars = step_scalars(o_, k, k);
    if (peers_ != nullptr) return run_with_others(scalars);
    const std::span<float> x = session_.host<float>(kBatchX);
    make_values(x);
    if (o_.config.classes > 0) {
      const std::span<int32_t> y = session_.host<int32_t>(kBatchY);
      for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int32_t>(i % o_.config.classes);
    }
    return seconds_of([&] { session_.step().run(scalars); });
  }

  double run_with_others(const Scalars& scalars) {
    peers_->any(0);  // all begin together
    const int64_t sent = peers_->sent_bytes();
    const double seconds = seconds_of([&] { session_.step().run(scalars); });
    sent_bytes_ = peers_->sent_bytes() - sent;
    rank_seconds_.push_back(rank_seconds(seconds, session_.step().standstill()));
    return seconds;
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
  Peers* const peers_;                  // null: alone
  std::optional<MadeSamples> samples_;  // of a rank
  Session session_;
  const std::map<GemmShape, int64_t> shapes_;
  std::vector<double> step_seconds_, predicted_seconds_;
  std::vector<RankSeconds> rank_seconds_;  // of the same steps
  int64_t sent_bytes_ = 0;                 // in each of them
  std::map<GemmShape, std::vector<double>> gemm_seconds_;
  std::optional<StepProfile> profile_;
  int64_t peak_ = 0;
};

// What is measured, but for the place of ranks.
TrainOptions options_of(Settings& s, int64_t budget) {
  s.sample_every = 0;
  const DitConfig config = resolve_model(s, nullptr);
  TrainOptions options = resolve_training(s, config, nullptr);
  options.budget_bytes = budget;
  return options;
}

// A rank has the samples of its own share, and in a pipeline they go from stage to stage, as in
// training.
RunSpec spec_in(TrainOptions options, const RankPlace& place) {
  options.step.place = place;
  RunSpec spec = run_spec(options, nullptr);
  if (place.alone()) return spec;
  spec.step.feeding.by_feed = true;
  spec.held_bytes += MadeSamples::held_bytes(options.config);
  return spec;
}

void print(const BenchReport& report, bool json) {
  fmt::print("{}", json ? bench_json(report) + "\n" : bench_text(report));
}

}  // namespace

int run_bench(Settings s) {
  const RankPlace place = resolve_place(s, nullptr);
  const MeasuredMachine measured = resolve_machine(s);
  const Machine& machine = inside(measured);
  TrainOptions options = options_of(s, resolve_budget(s, measured));
  options.step.leaves = resolve_leaves(s, place);
  const PlannedRun planned = plan_fitting_run(spec_in(options, place), machine);
  const MeasureOptions again = measuring(measure_options(s));
  Bench bench(options, planned, machine, s.profile, nullptr);
  bench.run(s.rounds, s.recalibrate ? &again : nullptr);
  print(bench.report(), s.json);
  // The disk has a pace of its own.
  if (!planned.step.choices.offload.any()) {
    learn_from_steps(bench.step_seconds(), planned.seconds, machine, again);
  }
  return 0;
}

int bench_over_ranks(Settings s, Peers& peers) {
  RankPlace place;
  agree(&peers, [&] {
    place = resolve_place(s, &peers);
    if (!s.recalibrate) return;
    fail(Exit::usage, "--recalibrate contradicts --ranks: it measures the machine of one process",
         "leave it out, or start ebb bench without mpiexec");
  });
  const auto say = [&](const std::string& line) {
    if (!s.json) fmt::print("{}\n", line);
  };
  const MeasuredMachine measured =
      with_link_between(resolve_machine_together(s, peers), s, peers, say);
  const Machine& machine = inside(measured);
  compare_ranks(peers, machine, settings_toml("bench", s));
  std::optional<TrainOptions> options;
  std::optional<PlannedRun> planned;
  agree(&peers, [&] {
    options = options_of(s, resolve_budget_of_rank(s, measured));
    options->step.leaves = resolve_leaves(s, place);
    const auto spec_of = [&](const RankPlace& other) { return spec_in(*options, other); };
    if (layout_is_open(s, place)) place = fastest_place(place, spec_of, machine);
    planned = plan_fitting_run(spec_of(place), machine);
  });
  compare_plans(peers, *planned);
  Bench bench(*options, *planned, machine, s.profile, &peers);
  bench.run(s.rounds, nullptr);
  const BenchReport report = bench.report();
  if (peers.rank() == 0) print(report, s.json);
  return 0;
}

}  // namespace ebb
