#include "prune/data_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "data/loader.h"
#include "model/scoring.h"
#include "plan/planned_run.h"
#include "run/executor.h"
#include "state/state.h"

namespace ebb {

namespace {

void check_data(const CheckpointInfo& info, const DataInfo& data) {
  const DitConfig& c = info.config;
  constexpr const char* kHint = "give the data that the model was trained on, or some of its kind";
  if (data.channels != c.channels || data.height != c.image_size || data.width != c.image_size) {
    fail(
        Exit::data,
        fmt::format("--data: samples of {} channels and {} x {}, but the model's have {} and {} x "
                    "{}",
                    data.channels, data.height, data.width, c.channels, c.image_size, c.image_size),
        kHint);
  }
  if (data.pixels != info.pixels) {
    fail(Exit::data,
         fmt::format("--data: {}, but the model draws {}", data.pixels ? "pictures" : "latents",
                     info.pixels ? "pictures" : "latents"),
         kHint);
  }
  if (c.classes > 0 && data.classes != c.classes) {
    fail(Exit::data,
         fmt::format("--data: {} classes, but the model has {}", data.classes, c.classes), kHint);
  }
}

// What a plan, once it is made, holds while samples go through it.
class Scoring {
 public:
  Scoring(const Plan& plan, const PlanSet& plans, const StepSpec& step, const DitConfig& config,
          const SafetensorsReader& file, const Machine& machine)
      : plan_(plan),
        memory_(plans, machine),
        executor_(plan, *machine.device, memory_),
        state_(plan, memory_, config, step) {
    verify_hashes(file);
    load_state(file, state_, config);
    check_finite(state_, printable(file.path().string()));
  }

  // after() follows each batch. Returns why samples were left out.
  template <typename After>
  std::vector<std::string> run(const Source& source, const Loader::Options& options,
                               int64_t batches, After after) {
    const std::span<std::byte> room = memory_.host(plan_, plan_.program.at(kLoaderMemory));
    Loader loader(source, options, 0, room);
    executor_.take_from(loader);
    for (int64_t k = 0; k < batches; ++k) {
      Scalars scalars;
      scalars.seed = options.seed;
      scalars.step = k;
      executor_.run(scalars);
      after();
    }
    return loader.take_notes();
  }

  const Executor& executor() const { return executor_; }
  const State& state() const { return state_; }

  // A weight's numbers with their gradient, or with zeros: each(column, w, g) for all of them.
  template <typename Each>
  void each_number(const std::string& name, bool with_gradient, Each each) const {
    constexpr int64_t kPart = 16 * kMomentBlock;
    const StateTensor& tensor = state_.at(name);
    if (tensor.mask) return each_left(tensor, with_gradient, each);
    const int64_t columns = tensor.shape.size() > 1 ? tensor.count() / tensor.shape[0] : 1;
    std::vector<float> w(kPart), g(kPart);
    for (int64_t first = 0; first < tensor.count(); first += kPart) {
      const int64_t count = std::min(kPart, tensor.count() - first);
      read_part(tensor, with_gradient, first, w.data(), g.data(), count);
      for (int64_t i = 0; i < count; ++i) {
        each((first + i) % columns, static_cast<double>(w[i]), static_cast<double>(g[i]));
      }
    }
  }

 private:
  void read_part(const StateTensor& tensor, bool with_gradient, int64_t first, float* w, float* g,
                 int64_t count) const {
    constexpr auto kItem = static_cast<int64_t>(sizeof(float));
    state_.read(tensor, first, w, count);
    if (!with_gradient) return;
    memory_.read(g, plan_, plan_.program.at("grad." + tensor.name), first * kItem, count * kItem);
  }

  // Of a sparse one, row by row.
  template <typename Each>
  void each_left(const StateTensor& tensor, bool with_gradient, Each each) const {
    const StateTensor& mask = state_.at(kMask + tensor.name);
    const int64_t columns = tensor.matrix[1], row_bytes = mask_bytes(columns);
    std::vector<uint8_t> bits(static_cast<size_t>(row_bytes));
    std::vector<float> w(static_cast<size_t>(columns)), g(static_cast<size_t>(columns));
    int64_t first = 0;
    for (int64_t row = 0; row < tensor.matrix[0]; ++row) {
      state_.read_mask(mask, row * row_bytes, bits.data(), row_bytes);
      int64_t count = 0, next = 0;
      for (const uint8_t byte : bits) count += std::popcount(byte);
      read_part(tensor, with_gradient, first, w.data(), g.data(), count);
      for (int64_t k = 0; k < columns; ++k) {
        if ((bits[k / 8] >> (k % 8) & 1) == 0) continue;
        each(k, static_cast<double>(w[next]), static_cast<double>(g[next]));
        ++next;
      }
      first += count;
    }
  }

  const Plan& plan_;
  RunMemory memory_;
  Executor executor_;
  State state_;
};

[[noreturn]] void refuse_budget(ScoreBy by, int64_t needed, int64_t budget) {
  fail(Exit::budget,
       fmt::format("prune: scores by {} need at least {}, over --memory {}", score_name(by),
                   format_size(needed), format_size(budget)),
       by == ScoreBy::taylor ? "--by activation and fluctuation need no gradients, --by fisher, l2 "
                               "and l1 not even the model in memory"
                             : "--by fisher, l2 and l1 do not need the model in memory");
}

std::string output_layer(const char* name, int64_t block, Structure kind) {
  return fmt::format("blocks.{}.{}.{}", block, kind == Structure::head ? "attn.proj" : "mlp.fc2",
                     name);
}

class DataScorer {
 public:
  DataScorer(const SafetensorsReader& file, const CheckpointInfo& info, ScoreBy by,
             const Source& source, const DataScoring& options, const Machine& machine)
      : file_(file),
        config_(info.config),
        by_(by),
        source_(source),
        options_(options),
        machine_(machine) {
    step_.batch = std::min(kScoringBatch, options.samples);
    batches_ = (options.samples + step_.batch - 1) / step_.batch;
    loading_ = {options.seed, step_.batch, options.loader_threads,
                Loader::worth_ahead(source, step_.batch, options.loader_threads)};
    step_.update = step_.ema = false;
    step_.label_drop = options.label_drop;
    step_.feeding = {true, source.info().type, false, Loader::memory_bytes(source, loading_)};
    made_.samples = batches_ * step_.batch;
    made_.scores.comparable = by == ScoreBy::taylor;
    for (const BlockShape& shape : config_.blocks) {
      made_.scores.blocks.push_back({std::vector<double>(static_cast<size_t>(shape.heads)),
                                     std::vector<double>(static_cast<size_t>(shape.mlp)), 0});
    }
  }

  DataScores run() {
    by_ == ScoreBy::taylor ? by_gradients() : by_activations();
    return std::move(made_);
  }

 private:
  // That the host holds besides the plan and the open data: what decodes, and the file's names.
  int64_t held_bytes() const {
    return options_.loader_threads * source_.heap_bytes() +
           checkpoint_heap_bytes(config_, {}, true);
  }

  int64_t width_of(Structure kind) const {
    return kind == Structure::head ? config_.head_width : 1;
  }

  void by_gradients() {
    const PlannedRun planned = plan_run({"the model",
                                         config_,
                                         step_,
                                         {},
                                         {},
                                         options_.budget_bytes,
                                         source_.held_bytes(),
                                         held_bytes()},
                                        machine_);
    if (!planned.fits) refuse_budget(by_, planned.process_bytes(), options_.budget_bytes);
    made_.arena_bytes = planned.plans.arena_bytes;
    Scoring scoring(planned.step_plan(), planned.plans, planned.step, config_, file_, machine_);
    made_.notes = scoring.run(source_, loading_, batches_, [&] { add_taylor(scoring); });
  }

  void add_taylor(const Scoring& scoring) {
    const auto loss = scoring.executor().first(kLoss);
    if (!std::isfinite(loss)) {
      fail(Exit::numbers, fmt::format("prune: the loss of the samples is {}", loss),
           "use an earlier checkpoint, or look at the data");
    }
    for (int64_t i = 0; i < config_.depth(); ++i) {
      BlockScores& block = made_.scores.blocks[i];
      double whole = 0;
      for (const Structure kind : kStructures) {
        std::vector<double>& to = kind == Structure::head ? block.heads : block.mlp;
        if (to.empty()) continue;
        std::vector<double> sums(to.size());
        const int64_t width = width_of(kind);
        scoring.each_number(
            output_layer("weight", i, kind), true,
            [&](int64_t column, double w, double g) { sums[column / width] += w * g; });
        scoring.each_number(output_layer("bias", i, kind), true,
                            [&](int64_t, double w, double g) { whole += w * g; });
        for (size_t k = 0; k < sums.size(); ++k) {
          to[k] += std::abs(sums[k]) / static_cast<double>(batches_);
          whole += sums[k];
        }
      }
      block.block += std::abs(whole) / static_cast<double>(batches_);
    }
  }

  void by_activations() {
    const PlanSet plans = plan_forward();
    made_.arena_bytes = plans.arena_bytes;
    Scoring scoring(plans.at(kScoringProgram), plans, step_, config_, file_, machine_);
    made_.notes = scoring.run(source_, loading_, batches_, [] {});
    for (int64_t i = 0; i < config_.depth(); ++i) {
      made_.means.push_back(
          {means_of(scoring, i, Structure::head), means_of(scoring, i, Structure::mlp)});
      double& whole = made_.scores.blocks[i].block;
      if (by_ == ScoreBy::activation) whole = std::sqrt(whole);
    }
  }

  // As many samples at a time as the budget holds.
  PlanSet plan_forward() {
    const int64_t outside = machine_.outside_bytes + source_.held_bytes() + held_bytes();
    int64_t& together = step_.choices.micro_batch;
    for (together = step_.batch;; together /= 2) {
      std::vector<Program> programs;
      programs.push_back(write_scoring(config_, step_, *machine_.device));
      PlanSet plans = make_plans(std::move(programs), machine_.limits());
      const int64_t own = bookkeeping_bytes(plans);
      const int64_t needed =
          outside + std::max(plans.arena_bytes + own, planning_bytes(own, false));
      if (needed <= options_.budget_bytes) return plans;
      if (together == 1) refuse_budget(by_, needed, options_.budget_bytes);
    }
  }

  // Scores the structures of one kind in a block; returns the means of their columns.
  std::vector<double> means_of(const Scoring& scoring, int64_t i, Structure kind) {
    BlockScores& block = made_.scores.blocks[i];
    std::vector<double>& to = kind == Structure::head ? block.heads : block.mlp;
    if (to.empty()) return {};
    const int64_t columns = std::ssize(to) * width_of(kind);
    std::vector<double> sums(static_cast<size_t>(3 * columns)),
        weights(static_cast<size_t>(columns));
    scoring.executor().get<double>(kind == Structure::head ? attention_sums(i) : mlp_sums(i), sums);
    if (by_ == ScoreBy::fluctuation) {
      scoring.each_number(output_layer("weight", i, kind), false,
                          [&](int64_t column, double w, double) { weights[column] += w * w; });
    }
    const auto samples = static_cast<double>(made_.samples);
    std::vector<double> means;
    for (int64_t k = 0; k < columns; ++k) {
      const double mean = sums[columns + k] / samples;
      const double variance = std::max(0.0, sums[2 * columns + k] / samples - mean * mean);
      const double score = by_ == ScoreBy::activation ? sums[k] : variance * weights[k];
      if (!std::isfinite(score) || !std::isfinite(mean)) refuse_numbers(i, kind);
      to[k / width_of(kind)] += score;
      block.block += score;
      means.push_back(mean);
    }
    if (by_ == ScoreBy::activation) {
      for (double& score : to) score = std::sqrt(score);
    }
    return means;
  }

  [[noreturn]] static void refuse_numbers(int64_t block, Structure kind) {
    fail(Exit::numbers,
         fmt::format("prune: the {} of block {} give values that are not finite",
                     kind == Structure::head ? "heads" : "MLP units", block),
         "use an earlier checkpoint, or look at the data");
  }

  const SafetensorsReader& file_;
  const DitConfig& config_;
  const ScoreBy by_;
  const Source& source_;
  const DataScoring& options_;
  const Machine& machine_;
  StepSpec step_;
  int64_t batches_ = 0;
  Loader::Options loading_;
  DataScores made_;
};

}  // namespace

DataScores data_scores(const SafetensorsReader& file, const CheckpointInfo& info, ScoreBy by,
                       const Source& source, const DataScoring& options, const Machine& machine) {
  require(needs_data(by) && options.samples > 0, "prune: {} samples for --by {}", options.samples,
          score_name(by));
  check_data(info, source.info());
  return DataScorer(file, info, by, source, options, machine).run();
}

}  // namespace ebb
