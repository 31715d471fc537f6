#include "train/outlook.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "model/optimizer.h"
#include "train/train_options.h"

namespace ebb {

namespace {

int64_t times(int64_t steps, int64_t every) { return (steps + every - 1) / every; }

// Every tensor in fp32, and what the header says of each: its type, shape, offsets and hash.
int64_t checkpoint_bytes(const DitConfig& config, const StepSpec& step, size_t settings_bytes) {
  constexpr int64_t kEntryBytes = 150;
  const Storage storage{.galore_rank = step.choices.storage.galore_rank};
  int64_t bytes = 1000 + static_cast<int64_t>(settings_bytes);
  for (const ParamSpec& spec : parameters(config)) {
    for (const StateBuffer& b : state_of(spec, step, storage)) {
      const auto names = 2 * static_cast<int64_t>(b.prefix.size() + spec.name.size());
      bytes += b.bytes() + names + kEntryBytes;
    }
  }
  return bytes;
}

}  // namespace

double Outlook::seconds_at(int64_t step) const {
  int64_t drawings = sample_every > 0 ? step / sample_every : 0;
  if (sample_every > 0 && step == steps) drawings = times(steps, sample_every);
  return stepping_seconds_at(step) + static_cast<double>(drawings) * drawing_seconds;
}

double Outlook::stepping_seconds_at(int64_t step) const {
  if (phases.empty()) return static_cast<double>(step) * step_seconds;
  double seconds = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const int64_t end = i + 1 < phases.size() ? std::min(step, phases[i + 1].begin) : step;
    seconds += static_cast<double>(std::max<int64_t>(0, end - phases[i].begin)) * phases[i].seconds;
  }
  return seconds;
}

std::optional<double> Outlook::total_seconds() const {
  if (steps == 0) return std::nullopt;
  return seconds_at(steps);
}

std::optional<double> Outlook::first(int64_t every) const {
  if (every == 0) return std::nullopt;
  return seconds_at(steps > 0 ? std::min(every, steps) : every);
}

std::optional<double> Outlook::first_picture_seconds() const { return first(sample_every); }
std::optional<double> Outlook::first_checkpoint_seconds() const { return first(save_every); }

std::optional<int64_t> Outlook::disk_bytes() const {
  if (save_every > 0 && checkpoints == 0) return std::nullopt;
  return checkpoints * checkpoint_bytes + offload_bytes;
}

Outlook outlook_of(const TrainOptions& o, const PlannedRun& planned, const Machine& machine) {
  Outlook outlook;
  outlook.steps = o.steps;
  outlook.save_every = o.save_every;
  outlook.sample_every = planned.sampler ? o.sample_every : 0;
  outlook.step_seconds = planned.seconds;
  outlook.phases = planned.phases;
  outlook.offload_bytes = planned.plans.total_away_bytes();
  outlook.checkpoint_bytes = checkpoint_bytes(o.config, planned.step, o.settings.size());
  if (o.save_every > 0) {
    const int64_t saves = o.steps > 0 ? times(o.steps, o.save_every) : 0;
    const int64_t kept = o.keep > 0 ? o.keep + 1 : 0;  // the oldest goes when the newest is there
    outlook.checkpoints = saves > 0 && kept > 0 ? std::min(saves, kept) : std::max(saves, kept);
  }
  if (outlook.sample_every > 0) {
    const auto pictures = static_cast<int64_t>(o.sample_classes.size()) * o.samples_each;
    outlook.drawing_seconds = drawing_seconds(o.config, *planned.sampler, pictures, machine);
  }
  return outlook;
}

}  // namespace ebb
