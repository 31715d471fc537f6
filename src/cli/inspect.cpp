#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "api/impl.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/preview.h"
#include "cli/resolve.h"
#include "cli/verbs.h"
#include "formats/input_file.h"
#include "formats/model_json.h"
#include "formats/pruned_json.h"
#include "formats/safetensors.h"
#include "machine/process.h"
#include "model/config.h"
#include "prune/structure.h"
#include "state/checkpoint.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// As `ebb train` opens it without --memory, so that both count the same.
Data open_like_train(const Settings& s) {
  return resolve_data(s, s.target, available_memory_bytes() / 5 * 4, true);
}

constexpr size_t kListedClasses = 20;

void print_classes(const DataInfo& info) {
  const size_t listed = std::min(info.class_counts.size(), kListedClasses);
  for (size_t c = 0; c < listed; ++c) {
    fmt::print("  class {}{}: {} samples\n", c,
               c < info.class_names.size() ? " (" + info.class_names[c] + ")" : "",
               info.class_counts[c]);
  }
  if (info.class_counts.size() > listed) {
    fmt::print("  and {} more classes\n", info.class_counts.size() - listed);
  }
}

int inspect_data(const Settings& s) {
  const Data data = open_like_train(s);
  const DataInfo& info = inside(data).info();
  std::vector<std::string> notes = info.notes;
  if (s.has("out")) {
    for (std::string& note : write_preview(s.out, inside(data))) notes.push_back(std::move(note));
  }
  if (s.json) {
    Json j = {{"kind", info.kind},
              {"count", info.count},
              {"channels", info.channels},
              {"height", info.height},
              {"width", info.width},
              {"classes", info.classes},
              {"skipped", info.skipped},
              {"pixels", info.pixels},
              {"class_names", info.class_names},
              {"class_counts", info.class_counts},
              {"fingerprint", info.fingerprint},
              {"notes", notes}};
    fmt::print("{}\n", j.dump(2));
    return 0;
  }
  fmt::print("{}: {} samples of {}x{}x{}, {} classes, fingerprint {}\n", info.kind, info.count,
             info.channels, info.height, info.width, info.classes, info.fingerprint);
  print_classes(info);
  for (const std::string& note : notes) fmt::print("  {}\n", note);
  if (s.has("out")) fmt::print("  {}: what the network sees\n", printable(s.out));
  return 0;
}

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder / "checkpoints", ignored) &&
         (fs::exists(folder / "settings.toml", ignored) || newest_checkpoint(folder));
}

int64_t count_lines(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return 0;
  InputFile file(path);
  std::array<char, 4096> part;
  int64_t lines = 0;
  while (const size_t got = file.read(part.data(), part.size())) {
    lines += std::count(part.begin(), part.begin() + static_cast<ptrdiff_t>(got), '\n');
  }
  return lines;
}

// What is left of the blocks of a pruned model, and of which blocks.
std::string pruned_text(const CheckpointInfo& info, const std::string& where) {
  std::vector<int64_t> blocks;
  for (const PrunedBlock& block : pruned_from_json(info.pruned, info.config, where, Exit::disk)) {
    blocks.push_back(block.block);
  }
  const double density = density_of(info.config);
  return fmt::format("pruned: blocks {} of its first parent, heads:mlp*blocks {}{}",
                     ranges_text(ranges_of(blocks)), shapes_text(info.config.blocks),
                     density < 1 ? fmt::format(", density {:.4g}", density) : "");
}

void say_shapes(const SafetensorsReader& file) {
  if (file.metadata().count(kPrunedKey) == 0) return;
  fmt::print("  {}\n", pruned_text(read_info(file), file.path().string()));
}

// What one wants to know first of a run.
constexpr std::string_view kTellingSettings[] = {"data", "batch", "steps", "lr", "seed"};

int inspect_run(const Settings& s) {
  const fs::path run = s.target;
  const int64_t lines = count_lines(run / "log.jsonl");
  const auto newest = newest_checkpoint(run);
  if (!newest) {
    if (s.json) {
      fmt::print("{}\n", Json({{"kind", "run"}, {"step", 0}, {"log_lines", lines}}).dump(2));
    } else {
      fmt::print("run: no checkpoint yet, {} lines in log.jsonl\n", lines);
    }
    return 0;
  }
  const SafetensorsReader file(*newest, Exit::disk);
  const CheckpointInfo info = read_info(file);
  if (s.json) {
    fmt::print("{}\n", Json({{"kind", "run"},
                             {"checkpoint", clean_utf8(newest->string())},
                             {"step", info.step},
                             {"samples", info.samples},
                             {"seed", info.seed},
                             {"pixels", info.pixels},
                             {"classes", info.config.classes},
                             {"model", Json::parse(model_to_json(info.config))},
                             {"settings", info.settings},
                             {"log_lines", lines}})
                           .dump(2));
    return 0;
  }
  const DitConfig& c = info.config;
  fmt::print("run: {} steps done, {} samples seen, {} lines in log.jsonl\n", info.step,
             info.samples, lines);
  fmt::print("  newest checkpoint: {}\n", printable(newest->string()));
  fmt::print("  model: DiT {}x{}/{}, {} parameters, sees {}x{}x{}, {} classes\n", c.width,
             c.depth(), c.patch, parameter_count(c), c.channels, c.image_size, c.image_size,
             c.classes);
  if (!info.pruned.empty()) fmt::print("  {}\n", pruned_text(info, newest->string()));
  for (const std::string& line : split(info.settings, '\n')) {
    const std::string key = line.substr(0, line.find(' '));
    if (std::ranges::count(kTellingSettings, key) > 0) fmt::print("  {}\n", printable(line));
  }
  fmt::print("  all settings: {}\n", printable((run / "settings.toml").string()));
  return 0;
}

int inspect_tensors(const Settings& s) {
  const SafetensorsReader file(s.target);
  verify_hashes(file);
  int64_t values = 0;
  for (const TensorEntry& entry : file.tensors()) values += entry.count();
  if (s.json) {
    Json tensors = Json::object();
    for (const TensorEntry& entry : file.tensors()) {
      tensors[entry.name] = {{"type", type_name(entry.type)}, {"shape", entry.shape}};
    }
    fmt::print("{}\n", Json({{"kind", "safetensors"},
                             {"values", values},
                             {"metadata", file.metadata()},
                             {"tensors", tensors}})
                           .dump(2));
    return 0;
  }
  fmt::print("{} tensors, {} values\n", file.tensors().size(), values);
  say_shapes(file);
  for (const auto& [key, value] : file.metadata()) {
    if (key.rfind("xxh3.", 0) != 0) fmt::print("  {}: {}\n", printable(key), printable(value));
  }
  for (const TensorEntry& entry : file.tensors()) {
    fmt::print("  {:<60} {:<5} {}\n", printable(entry.name), type_name(entry.type),
               tensor_shape_text(entry.shape));
  }
  return 0;
}

}  // namespace

int run_inspect(Settings s) {  // NOLINT(performance-unnecessary-value-param): as every verb
  if (s.target.empty()) {
    fail(Exit::usage, "inspect: what is to be looked at?", "ebb inspect FILE or FOLDER");
  }
  const bool tensors = fs::path(s.target).extension() == ".safetensors";
  const bool run = !tensors && is_run(s.target);
  if (!tensors && !run) return inspect_data(s);
  for (const char* name : {"out", "image-size"}) {
    if (!s.has(name)) continue;
    fail(Exit::usage,
         fmt::format("--{}: {} is a {}, which has no samples to look at", name, printable(s.target),
                     run ? "run" : "file of tensors"),
         fmt::format("leave --{} out, or give a folder of data", name));
  }
  return run ? inspect_run(s) : inspect_tensors(s);
}

}  // namespace ebb
