#include "train/calibration.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/input_file.h"
#include "formats/json_reader.h"
#include "kernels/cpu/device.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kVersion = 3;  // of the file and of how is measured
constexpr int64_t kMostBytes = 1 << 20;
constexpr size_t kMostMachines = 16, kMostPoints = 1000;

// ---- the file: {"version":1,"machines":[{"machine":"...","points":[["gelu",x,y,seconds],..]},..]}

double read_size(JsonReader& json, double least, double most) {
  if (!json.next_element()) json.refuse("the end of a point", "four values");
  const double value = json.read_real();
  if (!(value >= least && value <= most)) json.refuse("a size or time", "one that can be");
  return value;
}

CostPoint read_point(JsonReader& json) {
  CostPoint point;
  json.begin_array();
  if (!json.next_element()) json.refuse("an empty point", "four values");
  point.kind = json.read_string();
  point.x = read_size(json, 1, 1e15);
  point.y = read_size(json, 1, 1e15);
  point.seconds = read_size(json, 1e-12, 1e4);
  if (json.next_element()) json.refuse("a fifth value", "four");
  return point;
}

Calibration read_machine(JsonReader& json) {
  Calibration machine;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "machine") {
      machine.machine = json.read_string();
    } else if (key == "points") {
      json.begin_array();
      while (json.next_element()) {
        if (machine.points.size() == kMostPoints) json.refuse("more points", "fewer");
        machine.points.push_back(read_point(json));
      }
    } else {
      json.skip_value();
    }
  }
  return machine;
}

std::vector<Calibration> parse_machines(const std::string& text, const std::string& where) {
  std::vector<Calibration> machines;
  int64_t version = 0;
  JsonReader json(text, where, Exit::disk, "");
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "version") {
      version = json.read_int();
      if (version != kVersion) json.refuse("another version", "this one");
    } else if (key == "machines") {
      json.begin_array();
      while (json.next_element()) {
        if (machines.size() == kMostMachines) json.refuse("more machines", "fewer");
        machines.push_back(read_machine(json));
      }
    } else {
      json.skip_value();
    }
  }
  json.finish();
  if (version != kVersion) fail(Exit::disk, where + ": no version");
  return machines;
}

std::string machines_text(const std::vector<Calibration>& machines) {
  std::string text = fmt::format("{{\"version\":{},\"machines\":[", kVersion);
  for (const Calibration& machine : machines) {
    text += fmt::format("{}\n{{\"machine\":{},\"points\":[", &machine == &machines[0] ? "" : ",",
                        json_quote(machine.machine));
    for (const CostPoint& point : machine.points) {
      text += fmt::format("{}\n[{},{},{},{}]", &point == &machine.points[0] ? "" : ",",
                          json_quote(point.kind), point.x, point.y, point.seconds);
    }
    text += "]}";
  }
  return text + "]}\n";
}

void write_machines(const fs::path& path, const std::vector<Calibration>& machines) {
  try {
    if (path.has_parent_path()) make_directories(path.parent_path());
    write_file_atomically(path, machines_text(machines));
  } catch (const Error& error) {
    fmt::print(stderr, "warning: calibration: not kept: {}\n", error.what());
  }
}

// ---- this machine

// Measured over the very shapes that would be measured now.
bool is_complete(const Calibration& calibration) {
  const std::vector<OpParams> shapes = calibration_shapes();
  const std::vector<CostPoint>& points = calibration.points;
  return std::equal(points.begin(), points.end(), shapes.begin(), shapes.end(),
                    [](const CostPoint& point, const OpParams& shape) {
                      const CostPoint wanted = cost_point(shape, 1);
                      return point.kind == wanted.kind && point.x == wanted.x &&
                             point.y == wanted.y;
                    });
}

}  // namespace

fs::path calibration_file() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string file = variable("EBB_CALIBRATION"); !file.empty()) return file;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "ebb" / "calibration.json";
  }
  if (const std::string home = variable("HOME"); !home.empty()) {
    return fs::path(home) / ".cache" / "ebb" / "calibration.json";
  }
  return {};
}

Calibration machine_calibration(const fs::path& file, const std::string& machine,
                                const std::function<std::vector<OpTiming>()>& measure) {
  const std::string name = printable(file.string());
  std::string why = "first use on this machine with these threads: measuring";
  std::vector<Calibration> machines;
  std::error_code ignored;
  if (!file.empty() && fs::exists(file, ignored)) {
    try {
      machines = parse_machines(read_text_file(file, kMostBytes), name);
    } catch (const Error&) {
      why = name + " is damaged: measuring again";
    }
  }
  const auto found = std::find_if(machines.begin(), machines.end(),
                                  [&](const Calibration& each) { return each.machine == machine; });
  if (found != machines.end()) {
    if (is_complete(*found)) return *found;
    why = name + " is of another version: measuring again";
    machines.erase(found);
  }
  fmt::print(stderr, "calibration: {}, about 5 s\n", why);
  Calibration made{machine, {}};
  for (const OpTiming& timing : measure()) {
    made.points.push_back(cost_point(timing.params, timing.seconds));
  }
  if (made.points.empty()) {
    fmt::print(stderr,
               "warning: calibration: the measuring process died: predicted times are those "
               "of a middling machine\n");
    return made;
  }
  if (machines.size() == kMostMachines) machines.erase(machines.begin());
  machines.push_back(made);
  if (!file.empty()) write_machines(file, machines);
  return made;
}

namespace {

// In a process of its own: what measuring takes is never part of this one, whose budget may be
// smaller. Nothing comes back from a process that was killed.
std::vector<OpTiming> calibrate_apart() {
  int ends[2];
  if (pipe(ends) != 0) return {};
  end_cpu_threads();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    try {
      std::vector<double> seconds;
      for (const OpTiming& timing : calibrate_cpu()) seconds.push_back(timing.seconds);
      const auto bytes = static_cast<ssize_t>(seconds.size() * sizeof(double));
      _exit(write(ends[1], seconds.data(), bytes) == bytes ? 0 : 1);
    } catch (const std::exception&) {
      _exit(1);
    }
  }
  close(ends[1]);
  std::vector<OpTiming> timings;
  for (const OpParams& shape : calibration_shapes()) {
    double seconds = 0;
    ssize_t got = -1;
    while (child > 0 && (got = read(ends[0], &seconds, sizeof seconds)) < 0 && errno == EINTR) {
    }
    if (got != sizeof seconds) break;
    timings.push_back({shape, seconds});
  }
  close(ends[0]);
  int status = 1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0 || timings.size() != calibration_shapes().size()) timings.clear();
  return timings;
}

}  // namespace

CostModel machine_costs() {
  return CostModel(machine_calibration(calibration_file(), cpu_identity(), calibrate_apart));
}

}  // namespace ebb
