// What a checkpoint says of itself: its metadata, the model that it describes, that model's
// parameters, and of a small one a training step and a sampler's, planned. The tensors themselves
// are the business of the target `safetensors`.
#include "train/checkpoint.h"

#include "fuzz.h"
#include "model/step.h"
#include "plan/plan.h"
#include "sample/sampler.h"
#include "train/weights_model.h"

namespace ebb {
namespace {

// Nothing runs here.
class NoDevice final : public Device {
 public:
  int64_t scratch_bytes(const OpParams&) const override { return 0; }
  void run(const OpParams&, const Call&) const override { std::abort(); }
};

void describe(const DitConfig& config) {
  constexpr int64_t kMostDepth = 8;  // for speed
  if (config.depth() > kMostDepth) return;
  for (const ParamSpec& spec : parameters(config)) {
    if (element_count(spec.shape) < 1) std::abort();
  }
}

void plan(const DitConfig& config, int64_t batch) {
  constexpr int64_t kMostDepth = 2;  // for speed
  if (config.depth() > kMostDepth) return;
  check_countable(config, batch);
  const NoDevice device;
  SamplerSpec drawing;
  drawing.kind = config.objective == Objective::flow ? SamplerKind::heun : SamplerKind::ddpm;
  drawing.batch = batch;
  drawing.guidance = config.classes > 0 ? 4 : 1;
  validate(drawing, config);
  StepSpec step;
  step.batch = batch;
  for (const Program& program :
       {write_sampler_step(config, drawing, device), write_step(config, step, device)}) {
    const PlanSet plans = make_plans({program});  // validates them too
    if (plans.arena_bytes < 4 * parameter_count(config)) std::abort();
  }
}

}  // namespace

void fuzz(std::string_view bytes) {
  static MemoryFile file;
  const SafetensorsReader reader(file.holding(bytes), Exit::disk, 1 << 20);
  may_refuse([&] {
    const DitConfig told = model_of(reader, {.heads = 2, .image_size = 8});
    refuse_unknown_tensors(reader, told);
    describe(told);
    plan(told, 1);
  });
  const CheckpointInfo info = read_info(reader);
  if (info.step < 0 || info.samples < 0 || info.updates < 0) std::abort();
  if (!(info.average_start >= 0 && info.average_start <= 1)) std::abort();
  describe(info.config);
  plan(info.config, info.step > 0 ? info.samples / info.step : 1);
}

}  // namespace ebb
