#include "api/saved_model.h"

#include <fmt/format.h>

#include "api/drawing.h"
#include "api/impl.h"
#include "api/resolve.h"
#include "base/error.h"
#include "base/threads.h"
#include "machine/budget.h"
#include "sample/shared_drawing.h"

namespace ebb {

namespace {

std::unique_ptr<SavedModel::Impl> open(const MeasuredMachine& machine,
                                       const std::filesystem::path& path, int64_t memory) {
  const int64_t budget = budget_of(memory, inside(machine));
  SafetensorsReader file(path, Exit::disk, header_limit(budget));
  CheckpointInfo info = read_info(file);
  return std::make_unique<SavedModel::Impl>(
      SavedModel::Impl{machine, budget, std::move(file), std::move(info), {}, {}});
}

}  // namespace

SavedModel::SavedModel(const MeasuredMachine& machine, const std::filesystem::path& file,
                       int64_t memory)
    : impl_(open(machine, file, memory)) {}
SavedModel::~SavedModel() = default;
SavedModel::SavedModel(SavedModel&&) noexcept = default;
SavedModel& SavedModel::operator=(SavedModel&&) noexcept = default;

int64_t SavedModel::steps_done() const { return impl_->info.step; }
int64_t SavedModel::channels() const { return impl_->info.config.channels; }
int64_t SavedModel::size() const { return impl_->info.config.image_size; }
int64_t SavedModel::classes() const { return impl_->info.config.classes; }
const std::vector<std::string>& SavedModel::class_names() const { return impl_->info.data.names; }
bool SavedModel::pictures() const { return impl_->info.pixels; }

void SavedModel::plan(const Drawing& drawing, const Extent& extent) {
  const CheckpointInfo& info = impl_->info;
  const SamplerSpec sampler = resolve(drawing, info.config, info.pixels);
  if (extent.samples < 1 || extent.held_bytes < 0 || sampler.batch < 1) {
    fail(Exit::usage,
         fmt::format("plan: found {} samples, {} together, {} bytes held, wanted at least 1, 1 and "
                     "0",
                     extent.samples, sampler.batch, extent.held_bytes),
         "say how much is to be drawn");
  }
  impl_->memory.reset();
  impl_->planned.reset();
  impl_->planned = plan_sampling({label_of({}, info.config), info.config, sampler, extent.exactly,
                                  extent.samples, impl_->budget_bytes, extent.held_bytes},
                                 inside(impl_->machine));
  verify_hashes(impl_->file);
}

int64_t SavedModel::together() const { return impl_->planned ? impl_->planned->sampler.batch : 0; }

void SavedModel::load() {
  if (!impl_->planned) {
    fail(Exit::usage, "draw: found no plan for it", "plan() says how and how much to draw");
  }
  const CheckpointInfo& info = impl_->info;
  impl_->memory.reset();
  RunMemory memory(impl_->planned->plans, inside(impl_->machine));
  State state(impl_->planned->plans.at(kSamplerProgram), memory, info.config, {});
  load_state(impl_->file, state, info.config);
  check_finite(state, impl_->file.path().string());
  impl_->memory = std::move(memory);
}

namespace {

// Peers null: alone.
bool draw_from(SavedModel::Impl& model, int64_t count, uint64_t seed, const DrawingCalls& calls,
               Peers* peers) {
  const TeamOf team(model.machine.threads());
  Drawer drawer(model.planned->plans, model.planned->sampler, model.info.config,
                *inside(model.machine).device, *model.memory);
  return draw_with(
      [&](const auto& label_of, const auto& take, const auto& stop, const auto& watch) {
        return peers != nullptr
                   ? SharedDrawing(drawer, *peers).draw(count, label_of, seed, take, stop, watch)
                   : drawer.draw(count, label_of, seed, take, stop, watch);
      },
      model.info.config, calls, model.file.path().string(),
      "use an earlier checkpoint, a smaller --guidance, or leave --no-clip out");
}

}  // namespace

bool SavedModel::draw(int64_t count, uint64_t seed, const DrawingCalls& calls) {
  if (!impl_->memory) load();
  return draw_from(*impl_, count, seed, calls, nullptr);
}

bool draw_shared(SavedModel& model, int64_t count, uint64_t seed, const DrawingCalls& calls,
                 Peers& peers) {
  return draw_from(model.impl(), count, seed, calls, &peers);
}

std::vector<float> SavedModel::draw(std::span<const int32_t> labels, uint64_t seed) {
  return draw_all(labels, impl_->info.config,
                  [&](const DrawingCalls& calls) { draw(std::ssize(labels), seed, calls); });
}

}  // namespace ebb
