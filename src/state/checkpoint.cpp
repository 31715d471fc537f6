#include "state/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "formats/model_json.h"
#include "formats/pruned_json.h"
#include "state/average.h"
#include "state/unsent.h"
#include "state/weights_model.h"

namespace ebb {

namespace {

constexpr const char* kFormat = "1";
constexpr const char *kPruneStep = "ebb.prune_step", *kPruneBegun = "ebb.prune_begun";
constexpr const char *kGaloreRank = "ebb.galore_rank", *kFrozen = "ebb.frozen_after_updates";

// Far above any run, and far enough below 64 bits for every product that is made of them.
constexpr int64_t kMostSteps = int64_t{1} << 40;

// The step in a name that checkpoint_path() gives; nothing for any other name.
std::optional<int64_t> step_in(const std::string& name) {
  constexpr std::string_view kBegin = "step-";
  int64_t step = -1;
  if (!name.starts_with(kBegin)) return std::nullopt;
  std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), step);
  const bool own = step >= 0 && checkpoint_path("", step).filename() == name;
  if (!own) return std::nullopt;
  return step;
}

std::string field(const SafetensorsReader& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    fail(Exit::disk,
         fmt::format("{}: no {} in its metadata: not a checkpoint of Ebb", file.path().string(),
                     key),
         "wanted a run's folder or a file of its checkpoints/, as `ebb train` writes them; weights "
         "alone are for `ebb grad`");
  }
  return found->second;
}

[[noreturn]] void refuse(const SafetensorsReader& file, const std::string& what) {
  fail(Exit::disk, fmt::format("{}: {}", file.path().string(), what),
       "the file is damaged: use another copy or an earlier checkpoint");
}

double real_field(const SafetensorsReader& file, const char* key) {
  try {
    return parse_real(field(file, key), key);
  } catch (const Error& e) {
    if (e.code() == Exit::disk) throw;
    refuse(file, e.what());
  }
}

int64_t count_field(const SafetensorsReader& file, const char* key, int64_t most) {
  int64_t value = -1;
  try {
    value = parse_int(field(file, key), key);
  } catch (const Error& e) {
    if (e.code() == Exit::disk) throw;
    refuse(file, e.what());
  }
  if (value < 0 || value > most) {
    refuse(file, fmt::format("{}: found {}, wanted 0 to {}", key, value, most));
  }
  return value;
}

// 0, or a power of two that fp32 holds: anything else would not come off a gradient exactly.
double parse_scale(const SafetensorsReader& file) {
  const double scale = real_field(file, "ebb.loss_scale");
  int exponent = 0;
  const bool power = std::frexp(scale, &exponent) == 0.5 && std::abs(exponent) < 100;
  if (scale != 0 && !power) {
    refuse(file, fmt::format("found ebb.loss_scale {}, wanted 0 or a power of two", scale));
  }
  return scale;
}

// Every step saw one batch.
void check_samples(const SafetensorsReader& file, const CheckpointInfo& info) {
  const int64_t batch = info.step > 0 ? info.samples / info.step : 0;
  if (info.samples == info.step * batch && (info.step == 0 || batch > 0) && batch <= kMostBatch) {
    return;
  }
  refuse(file, fmt::format("found {} samples after {} steps, wanted a batch of 1 to {} each",
                           info.samples, info.step, kMostBatch));
}

// The blocks before the first event have at least what the model has now.
PruneProgress read_progress(const SafetensorsReader& file, const CheckpointInfo& info) {
  PruneProgress progress;
  progress.step = count_field(file, kPruneStep, info.step);
  const std::string text = field(file, kPruneBegun);
  try {
    progress.begun = parse_shapes(text, kPruneBegun);
  } catch (const Error& e) {
    if (e.code() == Exit::disk) throw;
    refuse(file, e.what());
  }
  constexpr int64_t kMost = 1 << 24;
  bool holds = progress.step > 0 && std::ssize(progress.begun) == info.config.depth();
  for (int64_t i = 0; holds && i < info.config.depth(); ++i) {
    const BlockShape &then = progress.begun[i], &now = info.config.blocks[i];
    holds =
        then.heads >= now.heads && then.mlp >= now.mlp && then.heads <= kMost && then.mlp <= kMost;
  }
  if (holds) return progress;
  refuse(file, fmt::format("found {} {} after step {}, wanted the blocks that the model's {} were "
                           "pruned from",
                           kPruneBegun, printable(text), progress.step, info.config.depth()));
}

}  // namespace

std::filesystem::path checkpoint_path(const std::filesystem::path& run, int64_t step) {
  return run / "checkpoints" / fmt::format("step-{:09}.safetensors", step);
}

std::vector<StoredCheckpoint> checkpoints_of(const std::filesystem::path& run) {
  std::vector<StoredCheckpoint> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints", ignored)) {
    const auto step = step_in(entry.path().filename().string());
    if (step) found.push_back({*step, entry.path()});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run) {
  const auto found = checkpoints_of(run);
  if (found.empty()) return std::nullopt;
  return found.back().path;
}

std::map<std::string, std::string> checkpoint_metadata(const CheckpointInfo& info) {
  std::map<std::string, std::string> metadata = {
      {"ebb.format", kFormat},
      {kModelKey, model_to_json(info.config)},
      {"ebb.step", std::to_string(info.step)},
      {"ebb.samples", std::to_string(info.samples)},
      {"ebb.seed", std::to_string(info.seed)},
      {"ebb.pixels", info.pixels ? "true" : "false"},
      {"ebb.optimizer", info.optimizer},
      {"ebb.storage", info.storage},
      {"ebb.updates", std::to_string(info.updates)},
      {"ebb.loss_scale", fmt::format("{}", info.loss_scale)},
      {"ebb.clean_steps", std::to_string(info.clean_steps)},
      {"ebb.average_start", fmt::format("{}", info.average_start)},
      {kDataKey, data_to_json(info.data)},
      {"ebb.settings", info.settings}};
  if (info.galore_rank > 0) metadata[kGaloreRank] = std::to_string(info.galore_rank);
  if (info.frozen > 0) metadata[kFrozen] = std::to_string(info.frozen);
  if (!info.pruned.empty()) metadata[kPrunedKey] = info.pruned;
  if (info.pruning.step > 0) {
    metadata[kPruneStep] = std::to_string(info.pruning.step);
    metadata[kPruneBegun] = shapes_text(info.pruning.begun);
  }
  return metadata;
}

void prune_checkpoints(const std::filesystem::path& run, int64_t keep) {
  const auto found = checkpoints_of(run);
  if (keep <= 0) return;
  for (size_t i = 0; i + keep < found.size(); ++i) {
    std::error_code ignored;  // an old checkpoint that stays is no reason to stop a run
    std::filesystem::remove(found[i].path, ignored);
  }
}

int64_t checkpoint_heap_bytes(const DitConfig& config, const StepSpec& step, bool projects) {
  const Storage storage{.galore_rank = projects ? 1 : 0};
  constexpr int64_t kEach = 1200, kInReserve = 1000;
  int64_t tensors = 0;
  for (const ParamSpec& spec : parameters(config)) {
    tensors += std::ssize(state_of(spec, step, storage));
  }
  return kEach * std::max<int64_t>(0, tensors - kInReserve);
}

CheckpointInfo read_info(const SafetensorsReader& file) {
  const std::string where = file.path().string();
  if (const std::string format = field(file, "ebb.format"); format != kFormat) {
    fail(Exit::disk,
         fmt::format("{}: checkpoint format '{}', wanted {}", where, printable(format), kFormat));
  }
  const auto has = [&](const char* key) { return file.metadata().count(key) != 0; };
  CheckpointInfo info;
  info.config = model_from_json(field(file, kModelKey), where, Exit::disk);
  info.step = count_field(file, "ebb.step", kMostSteps);
  info.samples = count_field(file, "ebb.samples", kMostSteps * kMostBatch);
  check_samples(file, info);
  info.seed =
      static_cast<uint64_t>(count_field(file, "ebb.seed", std::numeric_limits<int64_t>::max()));
  info.pixels = field(file, "ebb.pixels") == "true";
  info.settings = field(file, "ebb.settings");
  // Otherwise of a version that had AdamW alone.
  info.optimizer = has("ebb.optimizer") ? field(file, "ebb.optimizer") : optimizers()[0].name;
  info.updates = info.step;
  if (has("ebb.storage")) {  // otherwise of a version that had fp32 alone
    info.storage = field(file, "ebb.storage");
    info.updates = count_field(file, "ebb.updates", info.step);
    info.clean_steps = count_field(file, "ebb.clean_steps", info.step);
    info.loss_scale = parse_scale(file);
  }
  if (has(kDataKey)) info.data = data_from_json(field(file, kDataKey), where, Exit::disk);
  if (has(kPrunedKey)) {
    info.pruned = field(file, kPrunedKey);
    pruned_from_json(info.pruned, info.config, where, Exit::disk);
  }
  if (has(kGaloreRank)) info.galore_rank = count_field(file, kGaloreRank, 1 << 20);
  if (has(kFrozen)) info.frozen = count_field(file, kFrozen, info.updates);
  if (has(kPruneStep)) info.pruning = read_progress(file, info);
  info.average_start = has("ebb.average_start")
                           ? real_field(file, "ebb.average_start")
                           : start_share(average_rule_in(info.settings), info.step);
  if (info.average_start < 0 || info.average_start > 1) {
    refuse(file, fmt::format("found ebb.average_start {}, wanted 0 to 1", info.average_start));
  }
  verify_metadata(file);  // last: what cannot be says more than a hash
  return info;
}

namespace {

void load_mask(const SafetensorsReader& file, const TensorEntry& entry, State& state,
               const StateTensor& tensor) {
  if (entry.type != TensorType::U8) {
    refuse(file, fmt::format("{} is of type {}, wanted U8", entry.name, type_name(entry.type)));
  }
  const int64_t row_bytes = tensor.shape[1];
  const int64_t together = std::max<int64_t>(1, kTensorPart / row_bytes);  // rows read at a time
  std::vector<uint8_t> part;
  const int64_t left = state.write_mask(tensor, [&](int64_t row, uint8_t* bytes) {
    if (row % together == 0) {
      part.resize(std::min(together, tensor.shape[0] - row) * row_bytes);
      file.read_range(entry, row * row_bytes, part.data(), std::ssize(part));
    }
    std::copy_n(part.data() + row % together * row_bytes, row_bytes, bytes);
  });
  if (left == tensor.left) return;
  refuse(file, left < 0 ? fmt::format("{} has bits behind its last column", entry.name)
                        : fmt::format("{} leaves {} weights, wanted the model's {}", entry.name,
                                      left, tensor.left));
}

}  // namespace

void load_state(const SafetensorsReader& file, State& state, const DitConfig& config) {
  const std::string where = file.path().string();
  refuse_unknown_tensors(file, config);
  for (const StateTensor& tensor : state.tensors()) {
    if (tensor.of_exchange()) continue;
    const TensorEntry* entry = file.find(tensor.name);
    if (entry == nullptr) {
      if (tensor.name == kPositionTable) {
        const ParamSpec positions{tensor.name, tensor.layer, tensor.shape, Init::positions};
        state.fill_whole(tensor, [&](float* all) { initialise(all, positions, 0, config); });
        continue;
      }
      fail(Exit::disk, fmt::format("{}: no tensor {}", where, tensor.name),
           tensor.purpose == Purpose::ema ? "a file without EMA needs --weights raw"
                                          : "the file is of another model");
    }
    if (entry->shape != tensor.whole_shape()) {
      fail(Exit::disk,
           fmt::format("{}: {} has shape {}, wanted {}", where, tensor.name,
                       shape_text(entry->shape), shape_text(tensor.whole_shape())),
           "the file is of another model");
    }
    if (tensor.is_mask()) {
      load_mask(file, *entry, state, tensor);
      continue;
    }
    state.fill(tensor, [&](float* values, int64_t first, int64_t count) {
      tensor.slice.each_run(first, count, [&](int64_t whole, int64_t own, int64_t n) {
        file.read_f32_part(*entry, whole, values + own - first, n);
      });
    });
  }
  load_unsent(file, state, config);
}

void verify_hashes_of(const SafetensorsReader& file, const State& state, const DitConfig& config,
                      const StateRanks& ranks) {
  std::set<std::string> here, kept;
  for (const StateTensor& tensor : state.tensors()) here.insert(tensor.name);
  for (const StateTensor& tensor : state_tensors(config, ranks.step)) kept.insert(tensor.name);
  verify_hashes(file, [&](const std::string& name) {
    return here.contains(name) || (ranks.peers.rank() == 0 && !kept.contains(name));
  });
}

void check_finite(const State& state, const std::string& where) {
  constexpr int64_t kPart = 64 * kMomentBlock;
  float part[kPart];
  for (const StateTensor& tensor : state.tensors()) {
    if (tensor.purpose == Purpose::moment || tensor.of_exchange() || tensor.is_mask() ||
        !tensor.complete())
      continue;
    for (int64_t first = 0; first < tensor.count(); first += kPart) {
      const int64_t count = std::min(kPart, tensor.count() - first);
      state.read(tensor, first, part, count);
      if (std::all_of(part, part + count, [](float x) { return std::isfinite(x); })) continue;
      fail(Exit::numbers, fmt::format("{}: {} has a value that is not finite", where, tensor.name),
           "use an earlier checkpoint");
    }
  }
}

}  // namespace ebb
