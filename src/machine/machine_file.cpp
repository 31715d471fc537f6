#include "machine/machine_file.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/input_file.h"
#include "machine/points_json.h"

namespace ebb {

namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kMostBytes = 1 << 20;
constexpr int64_t kMostThreads = 1024, kMostMemory = int64_t{1} << 50;
constexpr size_t kMostLanes = 8;

std::string lanes_text(const std::vector<LaneKind>& lanes) {
  std::string text = "[";
  for (const LaneKind& lane : lanes) {
    text += fmt::format(
        "{}\n{{\"name\":{},\"where\":{},\"fetch_bytes_per_second\":{},"
        "\"store_bytes_per_second\":{},\"most_bytes\":{},\"memory_bytes\":{}}}",
        &lane == &lanes[0] ? "" : ",", json_quote(lane.name), json_quote(lane.where),
        lane.fetch_rate, lane.store_rate, lane.most_bytes, lane.memory_bytes);
  }
  return text + "]";
}

int64_t read_count(JsonReader& json, int64_t least, int64_t most) {
  const int64_t value = json.read_int();
  if (value < least || value > most) {
    json.refuse(fmt::format("{}", value), fmt::format("{} to {}", least, most));
  }
  return value;
}

LaneKind read_lane(JsonReader& json) {
  LaneKind lane;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "name") {
      lane.name = json.read_string();
    } else if (key == "where") {
      lane.where = json.read_string();
    } else if (key == "fetch_bytes_per_second") {
      lane.fetch_rate = read_within(json, 1, 1e15);
    } else if (key == "store_bytes_per_second") {
      lane.store_rate = read_within(json, 1, 1e15);
    } else if (key == "most_bytes") {
      lane.most_bytes = read_count(json, 0, std::numeric_limits<int64_t>::max());
    } else if (key == "memory_bytes") {
      lane.memory_bytes = read_count(json, 0, kMostMemory);
    } else {
      json.refuse(fmt::format("\"{}\"", printable(key)), "a key of a lane");
    }
  }
  return lane;
}

struct Described {
  Machine machine;
  std::string kernels;
  int64_t version = 0, threads = 0;
};

Described read_described(JsonReader& json) {
  Described made;
  Machine& machine = made.machine;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "ebb_machine") {
      made.version = read_count(json, kVersion, kVersion);
    } else if (key == "device") {
      machine.calibration.machine = json.read_string();
    } else if (key == "kernels") {
      made.kernels = json.read_string();
    } else if (key == "threads") {
      made.threads = read_count(json, 1, kMostThreads);
    } else if (key == "outside_bytes") {
      machine.outside_bytes = read_count(json, 0, kMostMemory);
    } else if (key == "available_bytes") {
      machine.available_bytes = read_count(json, 0, kMostMemory);
    } else if (key == "paces") {
      machine.calibration.paces = read_paces(json);
    } else if (key == "points") {
      machine.calibration.points = read_points(json);
    } else if (key == "lanes") {
      json.begin_array();
      while (json.next_element()) {
        if (machine.lanes.size() == kMostLanes) json.refuse("more lanes", "fewer");
        machine.lanes.push_back(read_lane(json));
      }
    } else {
      json.refuse(fmt::format("\"{}\"", printable(key)), "a key of a machine");
    }
  }
  json.finish();
  return made;
}

// Those lanes that lead to the directory that the user named.
std::vector<LaneKind> lanes_to(const std::string& offload, const std::vector<LaneKind>& lanes,
                               const std::string& where) {
  std::vector<LaneKind> found;
  std::string known;
  for (const LaneKind& lane : lanes) {
    if (!offload.empty() && lane.where == offload) found.push_back(lane);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", printable(lane.where));
  }
  if (offload.empty() || !found.empty()) return found;
  fail(Exit::usage, fmt::format("--offload: {} does not describe {}", where, printable(offload)),
       known.empty() ? "ebb machine --offload DIR --json measures a disk there too"
                     : "it describes " + known);
}

}  // namespace

std::string machine_json(const Machine& machine) {
  return fmt::format(
      "{{\"ebb_machine\":{},\n\"device\":{},\n\"kernels\":{},\n\"threads\":{},\n"
      "\"outside_bytes\":{},\n\"available_bytes\":{},\n\"lanes\":{},\n\"paces\":{},\n\"points\":{}}"
      "}",
      kVersion, json_quote(machine.calibration.machine), json_quote(machine.device->kernels()),
      machine.device->threads(), machine.outside_bytes, machine.available_bytes,
      lanes_text(machine.lanes), paces_text(machine.calibration.paces),
      points_text(machine.calibration.points));
}

Machine read_machine(const std::filesystem::path& file, const std::string& offload,
                     const std::function<const Device&(int threads)>& device_with) {
  return machine_from_json(read_text_file(file, kMostBytes, Exit::usage), printable(file.string()),
                           offload, device_with);
}

Machine machine_from_json(const std::string& text, const std::string& where,
                          const std::string& offload,
                          const std::function<const Device&(int threads)>& device_with) {
  constexpr const char* kHint = "ebb machine --json > FILE writes one";
  JsonReader json(text, where, Exit::usage, kHint);
  Described made = read_described(json);
  if (made.version == 0 || made.threads == 0 || made.kernels.empty()) {
    fail(Exit::usage, where + ": found no whole description of a machine", kHint);
  }
  Machine& machine = made.machine;
  machine.device = &device_with(static_cast<int>(made.threads));
  if (machine.device->kernels() != made.kernels) {
    fail(
        Exit::usage,
        fmt::format("{}: found a machine with the kernels \"{}\", but this build has \"{}\", whose "
                    "plans are others",
                    where, printable(made.kernels), machine.device->kernels()),
        "plan with a build for that machine (-DEBB_PORTABLE=ON is one for any x86-64-v3)");
  }
  machine.costs = CostModel(machine.calibration);
  machine.lanes = lanes_to(offload, machine.lanes, where);
  return std::move(made.machine);
}

}  // namespace ebb
