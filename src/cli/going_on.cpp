#include "cli/going_on.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/checkpoint_of.h"
#include "cli/resolve.h"
#include "formats/model_json.h"
#include "formats/pruned_json.h"
#include "machine/budget.h"
#include "train/resume.h"
#include "train/run_folder.h"

namespace ebb {

namespace {

Origin opened(const std::filesystem::path& path, int64_t budget_bytes) {
  SafetensorsReader file(path, Exit::disk, header_limit(budget_bytes));
  CheckpointInfo info = read_info(file);
  return {std::move(file), std::move(info)};
}

// Blocks as the settings have them so far.
std::vector<BlockShape> blocks_in(const Settings& s, const DitConfig& saved) {
  if (!s.shapes.empty()) return parse_shapes(s.shapes, "shapes");
  DitConfig even = saved;
  set_blocks(even, saved.depth(), saved.width / saved.head_width);
  return even.blocks;
}

// A name and single sizes say what a model was before it was pruned: shapes are the checkpoint's.
void follow_shapes(Settings& s, const DitConfig& c) {
  if (s.said("shapes")) return;
  int64_t depth = s.depth;
  if (depth == 0) depth = named_size(s.model, s.given.at("model")).depth;
  if (depth != c.depth()) {
    s.shapes.clear();  // which is refused, as another depth
  } else if (shapes_text(blocks_in(s, c)) != shapes_text(c.blocks)) {
    s.shapes = shapes_text(c.blocks);
  }
}

void follow_model(Settings& s, const DitConfig& c) {
  const auto follow = [&](const char* name, auto& value, const auto& found) {
    if (!s.said(name)) value = found;
  };
  const bool named = s.said("model");
  follow("width", s.width, named ? 0 : c.width);
  follow("depth", s.depth, named ? 0 : c.depth());
  follow("heads", s.heads, named ? 0 : c.width / c.head_width);
  follow("patch", s.patch, named ? 0 : c.patch);
  follow("image-size", s.image_size, c.image_size);
  follow("channels", s.channels, c.channels);
  follow("classes", s.classes, c.classes);
  follow("no-learn-sigma", s.no_learn_sigma, s.said("objective") ? false : !c.learn_sigma);
  follow("objective", s.objective, objective_name(c.objective));
  follow("qk-norm", s.qk_norm, qk_norm_name(c.qk_norm));
  follow("density", s.density, density_of(c));
  follow_shapes(s, c);
}

}  // namespace

std::optional<Origin> open_origin(const Settings& s, int64_t budget_bytes) {
  if (!s.goes_on()) return std::nullopt;
  if (!s.resume) return opened(checkpoint_of(s.begin_from), budget_bytes);
  std::optional<int64_t> step;
  if (s.has("resume-step")) step = s.resume_step;
  const StoredCheckpoint stored = resumed_checkpoint(s.out, step);
  try {
    return opened(stored.path, budget_bytes);
  } catch (const Error& e) {
    fail_naming_earlier(e, s.out, stored);
  }
}

void follow(Settings& s, const Origin& origin) {
  const CheckpointInfo& info = origin.info;
  if (s.said("density") && !has_density(info.config, s.density)) {
    fail(Exit::disk,
         fmt::format("{}: its run has --density {:.6g}, not {}",
                     printable(origin.file.path().string()), density_of(info.config), s.density),
         "leave --density out: the checkpoint says it");
  }
  follow_model(s, info.config);
  if (!s.said("batch") && info.step > 0) s.batch = info.samples / info.step;
  if (!s.said("seed")) s.seed = static_cast<int64_t>(info.seed);
  const Optimizer own = saved_optimizer(origin.file, info);
  const bool same = s.decisions.optimizer.value_or(Optimizer::adamw) == own;
  if (!s.said("optimizer") && !same) s.decisions.optimizer = own;
  // "on" is as much of the checkpoint's as of any other; a rank that is not its own is refused.
  const std::optional<int64_t> rank = s.decisions.galore_rank;
  const bool any = !rank || (rank == Decisions::kQuarter && info.galore_rank > 0);
  if (!s.said("galore") || any) s.decisions.galore_rank = info.galore_rank;
  const std::string average = fmt::format("{}final_layer.linear.weight", kAverage);
  if (!s.said("ema") && origin.file.find(average) == nullptr) s.ema = 0;
}

namespace {

// What the run's checkpoints will say of its pruning, at most: no more than when its first event
// was still to come, so that a run can be resumed in the budget that it began with.
int64_t pruned_bytes(const TrainOptions& o, const CheckpointInfo& info) {
  const int64_t now = std::ssize(info.pruned);
  if (!o.pruning) return now;
  if (info.pruning.begun.empty()) return now + o.pruned_bytes;
  DitConfig begun = info.config;
  begun.blocks = info.pruning.begun;
  return std::max(now, most_pruned_bytes(begun));
}

}  // namespace

void agree(TrainOptions& o, const Origin& origin) {
  const CheckpointInfo& info = origin.info;
  if (model_differences(info.config, o.config).empty()) o.config = info.config;
  check_run(origin.file, info, o);
  o.pruned_bytes = pruned_bytes(o, info);
  if (o.resume || o.steps > info.step) return;
  fail(Exit::usage,
       fmt::format("--steps: found {}, but {} is the state after step {}", o.steps,
                   printable(origin.file.path().string()), info.step),
       "it counts all steps, those of the checkpoint too: give more");
}

}  // namespace ebb
