#include "cli/prune_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/text.h"

namespace ebb {

namespace {

std::string shortened(std::string text, size_t most) {
  constexpr std::string_view kMore = "...";
  if (text.size() <= most) return text;
  text.resize(most - kMore.size());
  return text.append(kMore);
}

// The numbers below `count` that are not among the survivors.
std::string gone_text(const std::vector<int64_t>& kept, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count)), gone;
  std::iota(all.begin(), all.end(), int64_t{0});
  std::set_difference(all.begin(), all.end(), kept.begin(), kept.end(), std::back_inserter(gone));
  return ranges_text(ranges_of(gone));
}

int64_t total(const DitConfig& config, Structure kind) {
  int64_t count = 0;
  for (const BlockShape& shape : config.blocks) count += structure_count(shape, kind);
  return count;
}

std::string plan_line(const PruneReport& r, const PlanFigures& run, const char* when) {
  return fmt::format("  {}: {}{}, at least {}, {} a step, {}\n", when,
                     format_size(run.process_bytes),
                     run.fits ? "" : fmt::format(" (more than {})", format_size(r.budget_bytes)),
                     format_size(run.floor_bytes), format_seconds(run.seconds),
                     format_rate(static_cast<double>(r.batch) / run.seconds));
}

}  // namespace

std::string prune_table_text(const PruneReport& r) {
  constexpr size_t kColumns = 79, kBefore = 44;
  std::string text =
      fmt::format("  {:>5}  {:<14}  {:<17}  {}\n", "block", "heads", "mlp", "heads that go");
  auto survivor = r.kept.begin();
  for (int64_t i = 0; i < r.before.depth(); ++i) {
    if (survivor == r.kept.end() || survivor->block != i) {
      text += fmt::format("  {:>5}  goes\n", i);
      continue;
    }
    const auto share = [](size_t left, int64_t of) { return fmt::format("{} of {}", left, of); };
    const BlockShape& shape = r.before.blocks[i];
    std::string line =
        fmt::format("  {:>5}  {:<14}  {:<17}  {}", i, share(survivor->heads.size(), shape.heads),
                    share(survivor->mlp.size(), shape.mlp),
                    shortened(gone_text(survivor->heads, shape.heads), kColumns - kBefore));
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    ++survivor;
  }
  return text;
}

std::string prune_summary_text(const PruneReport& r) {
  constexpr size_t kMostShapes = 32;
  const int64_t before = parameter_count(r.before), after = parameter_count(r.after);
  std::string text =
      fmt::format("  parameters: {} -> {} ({:.1f} % removed)\n", before, after,
                  100 * static_cast<double>(before - after) / static_cast<double>(before));
  text += fmt::format("  heads:mlp*blocks: {} -> {}\n",
                      shortened(shapes_text(r.before.blocks), kMostShapes),
                      shortened(shapes_text(r.after.blocks), kMostShapes));
  if (density_of(r.before) < 1 || density_of(r.after) < 1) {
    text += fmt::format("  density {:.4g} -> density {:.4g}: of the weights of linear layers\n",
                        density_of(r.before), density_of(r.after));
  }
  for (const std::string& note : r.notes) text += fmt::format("  {}\n", note);
  if (!r.plan_after) return text;
  text += fmt::format("  training at batch {} would take\n", r.batch);
  if (r.plan_before) text += plan_line(r, *r.plan_before, "  before");
  text += plan_line(r, *r.plan_after, "  after");
  return text;
}

std::string prune_json(const PruneReport& r) {
  using Json = nlohmann::ordered_json;
  Json shapes = Json::array();
  for (const BlockShape& shape : r.after.blocks) shapes.push_back({shape.heads, shape.mlp});
  const auto gone = [&](Structure kind) { return total(r.before, kind) - total(r.after, kind); };
  const int64_t params = parameter_count(r.after);
  return Json({{"params", params},
               {"removed",
                {{"params", parameter_count(r.before) - params},
                 {"heads", gone(Structure::head)},
                 {"mlp", gone(Structure::mlp)},
                 {"blocks", r.before.depth() - r.after.depth()}}},
               {"shapes", shapes},
               {"density", density_of(r.after)},
               {"batch", r.batch},
               {"budget_bytes", r.budget_bytes},
               {"fits", r.plan_after->fits},
               {"process_bytes", r.plan_after->process_bytes},
               {"floor_bytes", r.plan_after->floor_bytes},
               {"predicted_step_seconds", r.plan_after->seconds},
               {"notes", r.notes}})
      .dump(2);
}

}  // namespace ebb
