#include <ebb/run.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "api/drawing.h"
#include "api/impl.h"
#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "machine/budget.h"
#include "train/resume.h"
#include "train/run.h"

namespace ebb {

namespace {

// What a run cannot do without, before it takes memory.
const TrainingPlan& runnable(const TrainingPlan& plan) {
  const TrainingPlan::Impl& p = inside(plan);
  if (!p.data) {
    fail(Exit::usage, "run: found a plan without data, wanted one that is made with it",
         "give the Data to the TrainingPlan");
  }
  plan.check_fits();
  for (size_t lane = 0; lane < p.planned.plans.away_bytes.size(); ++lane) {
    const LaneKind& kind = inside(p.machine).lanes[lane];
    if (p.planned.plans.away_bytes[lane] == 0 || kind.open) continue;
    fail(Exit::usage,
         fmt::format("run: found a plan that keeps bytes in {} of another machine",
                     printable(kind.where)),
         "plan with MeasuredMachine::measure() on the machine that runs");
  }
  return plan;
}

}  // namespace

struct Run::Impl {
  explicit Impl(const TrainingPlan& made)
      : plan(runnable(made)),
        run(inside(plan).options, inside(*inside(plan).data), inside(plan).planned,
            inside(inside(plan).machine)) {
    const TeamOf team(threads());
    run.initialise();
  }

  int threads() const { return inside(inside(plan).machine).device->threads(); }
  const TrainOptions& options() const { return inside(plan).options; }

  void need_sound(const char* what) const {
    if (run.sound()) return;
    fail(Exit::numbers,
         fmt::format("{}: the state is not that of whole steps: a step or a load has failed", what),
         "load a checkpoint");
  }

  TrainingPlan plan;
  TrainingRun run;
  std::vector<std::string> notes;
};

Run::Run(const TrainingPlan& plan) : impl_(std::make_unique<Impl>(plan)) {}
Run::~Run() = default;
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;

StepRecord Run::step() {
  impl_->need_sound("step");
  const TeamOf team(impl_->threads());
  const StepRecord record = impl_->run.step();
  for (const std::string& line : impl_->run.take_notes()) {
    impl_->notes.push_back("left out: " + line);
  }
  return record;
}

int64_t Run::steps_done() const { return impl_->run.done(); }

void Run::save(const std::filesystem::path& file) const {
  impl_->need_sound("save");
  impl_->run.save(file);
}

void Run::load(const std::filesystem::path& path) {
  const TrainOptions& o = impl_->options();
  const SafetensorsReader file(path, Exit::disk, header_limit(o.budget_bytes));
  const TeamOf team(impl_->threads());
  impl_->run.load(file, [&](const CheckpointInfo& info) {
    check_run(file, info, o);
    const auto found = data_differences(info.data, impl_->run.data());
    if (!found.empty()) refuse_data(file, fmt::format("{}", fmt::join(found, "; ")));
  });
}

bool Run::draw(int64_t count, uint64_t seed, const DrawingCalls& calls) {
  impl_->need_sound("draw");
  if (!impl_->run.planned().sampler) {
    fail(Exit::usage, "draw: found a plan without drawing: Drawing::together is 0",
         "plan with at least 1, the most samples that are drawn together");
  }
  const TeamOf team(impl_->threads());
  return draw_with(
      [&](const auto& label_of, const auto& take, const auto& stop, const auto& watch) {
        return impl_->run.draw(count, label_of, seed, take, stop, watch);
      },
      impl_->options().config, calls, fmt::format("draw after step {}", steps_done()),
      "train longer or with a smaller rate, or give a smaller guidance");
}

std::vector<float> Run::draw(std::span<const int32_t> labels, uint64_t seed) {
  return draw_all(labels, impl_->options().config,
                  [&](const DrawingCalls& calls) { draw(std::ssize(labels), seed, calls); });
}

std::vector<std::string> Run::tensor_names() const {
  std::vector<std::string> names;
  for (const StateTensor& tensor : impl_->run.state().tensors()) {
    if (!tensor.is_mask()) names.push_back(tensor.name);
  }
  return names;
}

Run::Tensor Run::tensor(const std::string& name) const {
  impl_->need_sound("tensor");
  State& state = impl_->run.state();
  for (const StateTensor& found : state.tensors()) {
    if (found.name != name || found.is_mask()) continue;
    Tensor tensor{found.shape, std::vector<float>(found.count())};
    state.read(found, 0, tensor.values.data(), found.count());
    if (!found.mask) return tensor;
    Tensor whole{found.matrix, std::vector<float>(element_count(found.matrix))};
    state.spread(found, tensor.values.data(), 0, whole.values.data(), std::ssize(whole.values));
    return whole;
  }
  fail(Exit::usage,
       fmt::format("tensor: found no '{}' in the state{}", printable(name),
                   did_you_mean(name, tensor_names())),
       "tensor_names() lists them");
}

int64_t Run::arena_peak_bytes() const { return impl_->run.peak_bytes(); }
std::vector<std::string> Run::take_notes() { return std::exchange(impl_->notes, {}); }
const TrainingPlan& Run::plan() const { return impl_->plan; }

}  // namespace ebb
