#include "train/outside.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/input_file.h"
#include "formats/json_reader.h"
#include "kernels/cpu/device.h"
#include "run/process.h"
#include "train/calibration.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

// ---- the file: {"processes":[["kind",bytes],..]}, the oldest first

struct Measured {
  std::string kind;
  int64_t bytes;
};

constexpr size_t kMostProcesses = 300;

Measured read_process(JsonReader& json) {
  Measured found;
  json.begin_array();
  if (!json.next_element()) json.refuse("an empty list", "two values");
  found.kind = json.read_string();
  if (!json.next_element()) json.refuse("one value", "two");
  found.bytes = json.read_int();
  if (json.next_element()) json.refuse("a third value", "two");
  return found;
}

std::vector<Measured> read_processes(const fs::path& path) {
  std::vector<Measured> all;
  constexpr int64_t kMostBytes = 1 << 20;
  const std::string text = read_text_file(path, kMostBytes);
  JsonReader json(text, printable(path.string()), Exit::disk, "");
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key != "processes") json.refuse("another key", "processes");
    json.begin_array();
    while (json.next_element()) {
      if (all.size() == kMostProcesses) json.refuse("more processes", "fewer");
      all.push_back(read_process(json));
    }
  }
  json.finish();
  return all;
}

void write_processes(const fs::path& path, const std::vector<Measured>& all) {
  std::string text = "{\"processes\":[";
  for (const Measured& each : all) {
    text +=
        fmt::format("{}\n[{},{}]", &each == &all[0] ? "" : ",", json_quote(each.kind), each.bytes);
  }
  make_directories(path.parent_path());
  write_file_atomically(path, text + "]}\n");
}

// ---- this process

// Every linear layer once, by width. Where oneDNN packs by itself, with as many rows as a short run
// allows: packing memory grows with the width, and hardly with the rows past a few hundred.
std::vector<Linear> linear_widths(const PlanSet& plans) {
  const int64_t multiply_adds = cpu_packs_by_itself() ? 600'000'000 : 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> rows;
  for (const Plan& plan : plans.plans) {
    for (const Op& op : plan.program.ops) {
      const auto* p = std::get_if<Linear>(&op.params);
      if (p == nullptr) continue;
      int64_t& most = rows[{p->K, p->N}];
      most = std::max(most, std::min(p->R, 128 + multiply_adds / (p->K * p->N)));
    }
  }
  std::vector<Linear> shapes;
  for (const auto& [width, R] : rows) shapes.push_back({R, width.first, width.second});
  return shapes;
}

int64_t measure(const PlanSet& plans, const std::vector<Linear>& shapes) {
  prepare_kernels(plans);
  malloc_trim(0);  // what planning took and gave back
  int64_t peak = process_resident_bytes();
  for (const Linear& shape : shapes) {
    // A fresh high-water mark: what was taken and given back before does not count.
    std::ofstream("/proc/self/clear_refs") << "5";
    const int64_t own = warm_up_cpu(shape);
    peak = std::max(peak, process_peak_bytes() - own);
  }
  // What the program still takes by itself (log lines, names, one picture being encoded), and what
  // this measurement may be above the first.
  constexpr int64_t kReserve = (3 << 20) + kMeasuringNoise;
  // Packing memory is measured on fewer rows than the step has, and the heap keeps holes of it.
  constexpr int64_t kPackingReserve = 4 << 20;
  return peak + kReserve + (cpu_packs_by_itself() ? kPackingReserve : 0);
}

}  // namespace

void prepare_kernels(const PlanSet& plans) {
  forget_cpu_kernels();
  for (const Plan& plan : plans.plans) {
    for (const Op& op : plan.program.ops) prepare_cpu(op.params);
  }
}

int64_t first_measured(const fs::path& file, const std::string& kind, int64_t measured_bytes) {
  if (file.empty()) return measured_bytes;
  std::vector<Measured> all;
  std::error_code ignored;
  try {
    if (fs::exists(file, ignored)) all = read_processes(file);
  } catch (const Error&) {  // nothing is lost but a first measurement
  }
  int64_t best = measured_bytes;
  int64_t distance = kMeasuringNoise + 1;
  for (const Measured& each : all) {
    const int64_t away = std::abs(each.bytes - measured_bytes);
    if (each.kind != kind || away >= distance) continue;
    best = each.bytes;
    distance = away;
  }
  if (distance <= kMeasuringNoise) return best;
  if (all.size() == kMostProcesses) all.erase(all.begin());
  all.push_back({kind, measured_bytes});
  try {
    write_processes(file, all);
  } catch (const Error&) {  // the calibration, in the same folder, has said so
  }
  return measured_bytes;
}

int64_t outside_bytes(const PlanSet& plans, int64_t data_bytes) {
  const std::vector<Linear> shapes = linear_widths(plans);
  std::string kind = fmt::format("{}, {} bytes of data, linear layers", cpu_identity(), data_bytes);
  for (const Linear& shape : shapes) kind += fmt::format(" {}x{}x{}", shape.R, shape.K, shape.N);
  fs::path file = calibration_file();
  if (!file.empty()) file.replace_extension(".outside.json");
  return first_measured(file, kind, measure(plans, shapes));
}

}  // namespace ebb
