#include <ebb/plan.h>

#include <fmt/format.h>

#include "api/impl.h"
#include "api/resolve.h"
#include "base/error.h"
#include "formats/pruned_json.h"
#include "report/plan_report.h"

namespace ebb {

namespace {

// What the public settings say.
TrainOptions options_of(const MeasuredMachine& machine, Model model, const Training& t,
                        const DataInfo* info) {
  check_ranges(t);
  const DitConfig config = resolve(model, info);
  TrainOptions o = resolve(t, decisions_of(t), config, info);
  o.name = label_of(model, config);
  if (t.memory < 0) {
    fail(Exit::usage, fmt::format("--memory: found {}, wanted a number of bytes", t.memory),
         "leave it at 0 for 80 % of what is available");
  }
  o.budget_bytes = budget_of(t.memory, inside(machine));
  o.save_every = o.sample_every = 0;  // that is up to the caller,
  o.resume = true;                    // at any time
  if (!model.blocks.empty()) o.pruned_bytes = 2 * most_pruned_bytes(config);
  constexpr int64_t kMostTogether = 1 << 20;
  if (t.drawing.together < 0 || t.drawing.together > kMostTogether) {
    fail(Exit::usage, fmt::format("Drawing::together: found {}, wanted 0 to {}", t.drawing.together,
                                  kMostTogether));
  }
  if (t.drawing.together > 0) {
    o.sampler = resolve(t.drawing, config, info == nullptr || info->pixels);
    if (!o.step.ema) o.sampler->weights_prefix = "";
  }
  return o;
}

std::shared_ptr<TrainingPlan::Impl> make_plan(const MeasuredMachine& machine, TrainOptions options,
                                              const std::optional<Data>& data, Floor floor) {
  auto made = std::make_shared<TrainingPlan::Impl>(
      TrainingPlan::Impl{machine, data, std::move(options), {}, {}, {}});
  made->spec = run_spec(made->options, data ? &inside(*data) : nullptr);
  made->planned = floor == Floor::known ? plan_run_and_floor(made->spec, inside(machine))
                                        : plan_run(made->spec, inside(machine));
  return made;
}

PlanReport report_of(const TrainingPlan& plan) {
  const TrainingPlan::Impl& p = inside(plan);
  PlanReport report =
      describe(p.options.name, p.options.config, p.planned, p.options.budget_bytes, p.outlook);
  report.floor_bytes = plan.floor_bytes();
  report.fewer_pictures = p.options.fewer_pictures;
  if (p.planned.floor_bytes > 0) {
    report.codes = code_gains(p.options.config, p.planned.step, inside(p.machine));
  }
  return report;
}

}  // namespace

TrainingPlan plan_with_folder(const MeasuredMachine& machine, TrainOptions options,
                              const std::optional<Data>& data, Floor floor) {
  auto made = make_plan(machine, std::move(options), data, floor);
  made->outlook = outlook_of(made->options, made->planned, inside(machine));
  return TrainingPlan(std::move(made));
}

TrainingPlan::TrainingPlan(const MeasuredMachine& machine, const Model& model,
                           const Training& training, const Data& data)
    : TrainingPlan(make_plan(machine, options_of(machine, model, training, &inside(data).info()),
                             data, Floor::left_out)) {}

TrainingPlan::TrainingPlan(const MeasuredMachine& machine, const Model& model,
                           const Training& training)
    : TrainingPlan(make_plan(machine, options_of(machine, model, training, nullptr), std::nullopt,
                             Floor::left_out)) {}

bool TrainingPlan::fits() const { return impl_->planned.fits; }

void TrainingPlan::check_fits() const {
  if (!fits()) refuse_budget(impl_->spec, impl_->planned, inside(impl_->machine));
}

int64_t TrainingPlan::budget_bytes() const { return impl_->options.budget_bytes; }
int64_t TrainingPlan::process_bytes() const { return impl_->planned.process_bytes(); }
int64_t TrainingPlan::arena_bytes() const { return impl_->planned.plans.arena_bytes; }
double TrainingPlan::step_seconds() const { return impl_->planned.seconds; }
int64_t TrainingPlan::parameters() const { return parameter_count(impl_->options.config); }

int64_t TrainingPlan::micro_batch() const {
  const StepSpec& step = impl_->planned.step;
  return micro_batches(step.batch, step.choices.micro_batch)[0].size;
}

int64_t TrainingPlan::floor_bytes() const {
  if (impl_->planned.floor_bytes > 0) return impl_->planned.floor_bytes;
  return plan_run_and_floor(impl_->spec, inside(impl_->machine)).floor_bytes;
}

std::vector<TrainingPlan::Purpose> TrainingPlan::ledger() const {
  const PlanReport report =
      describe("", impl_->options.config, impl_->planned, budget_bytes(), std::nullopt);
  std::vector<Purpose> all;
  for (int i = 0; i < kPurposes; ++i) {
    all.push_back({purpose_name(static_cast<ebb::Purpose>(i)), report.purposes[i].at_peak});
  }
  all.push_back({"gap", report.gap});
  return all;
}

std::vector<TrainingPlan::Technique> TrainingPlan::techniques() const {
  std::vector<Technique> all;
  for (TechniqueUse& use : techniques_in_use(impl_->options.config, impl_->planned.step)) {
    all.push_back({std::move(use.name), std::move(use.setting), std::move(use.kind)});
  }
  return all;
}

std::string TrainingPlan::text() const {
  PlanReport report = report_of(*this);
  report.lossy_ways = lossy_ways_out(impl_->spec, inside(impl_->machine));
  return report_text(report);
}

std::string TrainingPlan::json() const { return report_json(report_of(*this)); }

}  // namespace ebb
