#include "train/prune_event.h"

#include <fmt/format.h>

#include "base/error.h"
#include "comm/agreement.h"
#include "formats/atomic_file.h"
#include "machine/budget.h"
#include "prune/selection.h"

namespace ebb {

namespace {

PruneRequest request_of(double share, const std::vector<BlockShape>& begun, int64_t panel) {
  PruneRequest request;
  request.heads = request.mlp = {share, 0, fmt::format("{:.4g}", share)};
  request.panel = panel;
  request.begun = begun;
  return request;
}

int64_t count_of(const std::vector<BlockShape>& blocks, Structure kind) {
  int64_t count = 0;
  for (const BlockShape& block : blocks) count += structure_count(block, kind);
  return count;
}

}  // namespace

std::vector<BlockShape> begun_with(const PruneSchedule& schedule, const PruneProgress& progress,
                                   const DitConfig& config) {
  return progress.step > schedule.begin ? progress.begun : config.blocks;
}

void check_share(const PruneSchedule& schedule, DitConfig config,
                 const std::vector<BlockShape>& begun, int64_t panel) {
  config.blocks = begun;
  Scores none;
  for (const BlockShape& shape : config.blocks) {
    none.blocks.push_back({std::vector<double>(static_cast<size_t>(shape.heads)),
                           std::vector<double>(static_cast<size_t>(shape.mlp)), 0});
  }
  try {
    select(config, none, request_of(schedule.share, begun, panel));
  } catch (const Error& e) {
    fail(e.code(), fmt::format("--prune-to: {}", e.what()), "choose a smaller share");
  }
}

namespace {

bool prune_file_if_due(const std::filesystem::path& from, const std::filesystem::path& to,
                       const PruneSchedule& schedule, int64_t panel, int64_t budget_bytes) {
  const SafetensorsReader file(from, Exit::disk, header_limit(budget_bytes));
  CheckpointInfo info = read_info(file);
  if (!schedule.due(info.step, info.pruning.step)) return false;
  const int64_t event = schedule.last_due(info.step);
  info.pruning = {schedule.step_of(event), begun_with(schedule, info.pruning, info.config)};
  check_tensors(file, info);
  const Scores scores = scores_of(file, info, schedule.by, {true, true, false}, info.seed);
  const Selection chosen = select(
      info.config, scores, request_of(schedule.share_after(event), info.pruning.begun, panel));
  Surgery surgery{chosen.kept};
  surgery.weights = choose_weights(file, info.config, chosen.kept, {}, Scope::block);
  if (pruned_config(info.config, surgery) == info.config) return false;
  make_directories(to.parent_path());
  write_pruned(to, file, info, surgery);
  return true;
}

}  // namespace

bool prune_if_due(const std::filesystem::path& from, const std::filesystem::path& to,
                  const PruneSchedule& schedule, int64_t panel, int64_t budget_bytes,
                  Peers* peers) {
  bool smaller = false;
  agree(peers, [&] {
    if (peers != nullptr && peers->rank() > 0) return;
    smaller = prune_file_if_due(from, to, schedule, panel, budget_bytes);
  });
  return peers != nullptr ? peers->any(smaller ? 1 : 0) != 0 : smaller;
}

std::string removed_text(const DitConfig& before, const DitConfig& left) {
  const auto gone = [&](Structure kind) {
    return count_of(before.blocks, kind) - count_of(left.blocks, kind);
  };
  return fmt::format("{} heads and {} MLP units go, {} stay (heads:mlp*blocks)",
                     gone(Structure::head), gone(Structure::mlp), shapes_text(left.blocks));
}

}  // namespace ebb
