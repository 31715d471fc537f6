#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "data/source.h"
#include "formats/model_json.h"
#include "formats/safetensors.h"

namespace ebb {

namespace {

using Json = nlohmann::ordered_json;

int inspect_data(const Settings& s) {
  SourceOptions options;
  options.image_size = s.image_size;
  options.verify = false;
  const auto source = open_source(s.target, options);
  const DataInfo& info = source->info();
  if (s.json) {
    Json j = {{"kind", info.kind},       {"count", info.count},   {"channels", info.channels},
              {"height", info.height},   {"width", info.width},   {"classes", info.classes},
              {"skipped", info.skipped}, {"pixels", info.pixels}, {"class_names", info.class_names},
              {"notes", info.notes}};
    fmt::print("{}\n", j.dump(2));
    return 0;
  }
  fmt::print("{}: {} samples of {}x{}x{}, {} classes\n", info.kind, info.count, info.channels,
             info.height, info.width, info.classes);
  for (const std::string& note : info.notes) fmt::print("  {}\n", note);
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
  const bool tensors = std::filesystem::path(s.target).extension() == ".safetensors";
  return tensors ? inspect_tensors(s) : inspect_data(s);
}

}  // namespace ebb
