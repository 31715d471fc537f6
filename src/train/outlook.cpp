#include "train/outlook.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "train/pictures.h"
#include "train/trainer.h"

namespace ebb {

namespace {

int64_t times(int64_t steps, int64_t every) { return (steps + every - 1) / every; }

// Every tensor in fp32, and what the header says of each: its type, shape, offsets and hash.
int64_t checkpoint_bytes(const DitConfig& config, bool ema, size_t settings_bytes) {
  constexpr int64_t kEntryBytes = 150;
  int64_t bytes = 1000 + static_cast<int64_t>(settings_bytes);
  for (const ParamSpec& spec : parameters(config)) {
    const int64_t copies = spec.trained() ? 3 + (ema ? 1 : 0) : 1;  // weight, two moments, average
    const auto names = 2 * static_cast<int64_t>(spec.name.size());
    bytes += copies * (4 * element_count(spec.shape) + names + kEntryBytes);
  }
  return bytes;
}

}  // namespace

double Outlook::seconds_at(int64_t step) const {
  int64_t drawings = sample_every > 0 ? step / sample_every : 0;
  if (sample_every > 0 && step == steps) drawings = times(steps, sample_every);
  return static_cast<double>(step) * step_seconds + static_cast<double>(drawings) * drawing_seconds;
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

Outlook outlook_of(const TrainOptions& o, const PlannedRun& planned, const CostModel& costs) {
  Outlook outlook;
  outlook.steps = o.steps;
  outlook.save_every = o.save_every;
  outlook.sample_every = planned.sampler ? o.sample_every : 0;
  outlook.step_seconds = planned.seconds;
  outlook.offload_bytes = planned.plans.disk_bytes;
  outlook.checkpoint_bytes = checkpoint_bytes(o.config, o.step.ema, o.settings.size());
  if (o.save_every > 0) {
    const int64_t saves = o.steps > 0 ? times(o.steps, o.save_every) : 0;
    const int64_t kept = o.keep > 0 ? o.keep + 1 : 0;  // the oldest goes when the newest is there
    outlook.checkpoints = saves > 0 && kept > 0 ? std::min(saves, kept) : std::max(saves, kept);
  }
  if (planned.sampler) {
    const auto pictures = static_cast<int64_t>(o.sample_classes.size()) * o.samples_each;
    outlook.drawing_seconds =
        drawing_seconds(o.config, *planned.sampler, pictures, planned.sampler->batch, costs);
  }
  return outlook;
}

namespace {

// "first pictures after 12m, checkpoint after 25m"; of a run that goes on nothing.
std::string first_text(const Outlook& o, int64_t done) {
  const auto picture = o.first_picture_seconds();
  const auto checkpoint = o.first_checkpoint_seconds();
  if (done > 0 || (!picture && !checkpoint)) return "";
  if (picture == checkpoint) {
    return fmt::format("first pictures and checkpoint after {}", format_seconds(*picture));
  }
  std::string text = picture ? "first pictures after " + format_seconds(*picture) : "";
  if (checkpoint) {
    text += fmt::format("{}checkpoint after {}", picture ? ", " : "first ",
                        format_seconds(*checkpoint));
  }
  return text;
}

std::string time_text(const Outlook& o, int64_t done) {
  const std::string first = first_text(o, done);
  if (o.steps == 0) {
    return fmt::format("{}{}", first,
                       first.empty() ? "--steps says how long" : " (in all: give --steps)");
  }
  return fmt::format("about {} for {} steps{}{}",
                     format_seconds(o.seconds_at(o.steps) - o.seconds_at(done)), o.steps - done,
                     first.empty() ? "" : "; ", first);
}

std::string disk_text(const Outlook& o) {
  std::string text = "no checkpoints (--save-every 0)";
  if (o.save_every > 0) {
    text = fmt::format("{} a checkpoint", format_size(o.checkpoint_bytes));
    if (o.checkpoints > 1) text += fmt::format(", at most {} at once", o.checkpoints);
  }
  if (o.offload_bytes > 0) text += fmt::format(", {} in --offload", format_size(o.offload_bytes));
  if (o.disk_bytes().value_or(0) > o.checkpoint_bytes) {
    text += fmt::format(": {} in all", format_size(*o.disk_bytes()));
  }
  return text;
}

}  // namespace

void print_outlook(const Outlook& outlook, int64_t done, const char* indent) {
  fmt::print("{}time: {}\n", indent, time_text(outlook, done));
  fmt::print("{}disk: {}\n", indent, disk_text(outlook));
}

}  // namespace ebb
