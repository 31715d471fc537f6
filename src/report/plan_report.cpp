#include "report/plan_report.h"

#include <algorithm>
#include <cstdlib>

namespace ebb {

namespace {

// The first op at which each purpose takes the most bytes, and how many.
struct Most {
  int op = 0;
  int64_t bytes = 0;
};

std::array<Most, kPurposes> most_of_each(const Plan& plan, const Limits& limits) {
  const auto ops = static_cast<int>(plan.program.ops.size());
  std::array<Most, kPurposes> most;
  for (int purpose = 0; purpose < kPurposes; ++purpose) {
    std::vector<int64_t> change(ops + 1);
    for (size_t i = 0; i < plan.held.size(); ++i) {
      const Buffer& b = plan.program.buffers[i];
      if (static_cast<int>(b.purpose) != purpose || plan.held[i].empty() || b.away()) continue;
      change[plan.held[i].begin] += limits.aligned(b.bytes());
      change[plan.held[i].end] -= limits.aligned(b.bytes());
    }
    int64_t live = 0;
    for (int op = 0; op < ops; ++op) {
      live += change[op];
      if (live > most[purpose].bytes) most[purpose] = {op, live};
    }
  }
  return most;
}

// What is no block comes first.
int64_t block_number(const std::string& layer) {
  return layer.starts_with("block") ? std::atoll(layer.c_str() + 5) : -1;
}

std::vector<PlanReport::Layer> layers_of(const Ledger& ledger) {
  std::vector<PlanReport::Layer> layers;
  for (const auto& [name, bytes] : ledger.layer) layers.push_back({name, bytes});
  std::stable_sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
    return block_number(a.name) < block_number(b.name);
  });
  return layers;
}

}  // namespace

PlanReport describe(const std::string& model, const DitConfig& config, const PlannedRun& run,
                    int64_t budget_bytes, const std::optional<Outlook>& outlook) {
  const Plan& step = run.step_plan();
  PlanReport r;
  r.model = model;
  r.params = parameter_count(config);
  r.tokens = config.tokens();
  r.batch = run.step.batch;
  const int64_t own = run.step.share().count;
  r.parts = micro_batches(own, run.step.choices.micro_batch);
  r.accumulation = micro_batch_count(own, run.step.choices.micro_batch);
  r.budget_bytes = budget_bytes;
  r.fits = run.fits;
  r.process_bytes = run.process_bytes();
  r.arena_bytes = run.plans.arena_bytes;
  r.outside_bytes = run.outside_bytes;
  r.floor_bytes = run.floor_bytes;
  r.away_bytes = run.plans.total_away_bytes();
  const auto most = most_of_each(step, run.plans.limits);
  for (int i = 0; i < kPurposes; ++i) {
    PlanReport::Purposed& each = r.purposes[i];
    each = {step.ledger.purpose[i], most[i].bytes, step.program.ops[most[i].op].name};
    each.always = most[i].op == 0 && each.most == each.at_peak;
  }
  // Where the sampler needs more than the step, the rest is its own.
  r.gap = run.plans.arena_bytes - step.ledger.total() + step.ledger.gap;
  r.layers = layers_of(step.ledger);
  r.peak_op = step.program.ops[step.peak_op].name;
  r.techniques = techniques_in_use(config, run.step);
  r.blocks = block_choices(run.step.choices.schedule, config.depth());
  r.step_seconds = run.seconds;
  r.step_flops = step.program.flops();
  r.outlook = outlook;
  r.place = run.step.place;
  r.ranks = run.ranks;
  r.phases = run.phases;
  return r;
}

}  // namespace ebb
