#include "machine/calibration.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"
#include "formats/input_file.h"
#include "machine/points_json.h"
#include "machine/process.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kVersion = 8;  // of the file and of how is measured
constexpr int64_t kMostBytes = 1 << 20;
constexpr int64_t kBusySeconds = 600;  // for so long a disturbed measurement is better than none
constexpr size_t kMostMachines = 16;

struct Kept {
  Calibration calibration;
  int64_t expires = 0;  // seconds since 1970; 0: never
};

// ---- the file:
// {"version":N,"machines":[{"machine":"...","expires":0,"paces":[1.02,..],
//                           "points":[["gelu",x,y,seconds],..]},..]}

Kept read_machine(JsonReader& json) {
  Kept kept;
  Calibration& machine = kept.calibration;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "machine") {
      machine.machine = json.read_string();
    } else if (key == "expires") {
      kept.expires = json.read_int();
    } else if (key == "paces") {
      machine.paces = read_paces(json);
    } else if (key == "points") {
      machine.points = read_points(json);
    } else {
      json.skip_value();
    }
  }
  return kept;
}

std::vector<Kept> parse_machines(const std::string& text, const std::string& where) {
  std::vector<Kept> machines;
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

std::string machines_text(const std::vector<Kept>& machines) {
  std::string text = fmt::format("{{\"version\":{},\"machines\":[", kVersion);
  for (const Kept& kept : machines) {
    const Calibration& machine = kept.calibration;
    text += fmt::format("{}\n{{\"machine\":{},\"expires\":{},\"paces\":{},\"points\":{}}}",
                        &kept == &machines[0] ? "" : ",", json_quote(machine.machine), kept.expires,
                        paces_text(machine.paces), points_text(machine.points));
  }
  return text + "]}\n";
}

// ---- this machine

// Measured over the very shapes that would be measured now.
bool is_complete(const Calibration& calibration, const std::vector<CostPoint>& wanted) {
  const std::vector<CostPoint>& points = calibration.points;
  return std::equal(points.begin(), points.end(), wanted.begin(), wanted.end(),
                    [](const CostPoint& point, const CostPoint& like) {
                      return point.kind == like.kind && point.x == like.x && point.y == like.y;
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

namespace {

// What the file holds, or nothing; fails if it is damaged.
std::vector<Kept> read_machines(const fs::path& file) {
  std::error_code ignored;
  if (file.empty() || !fs::exists(file, ignored)) return {};
  return parse_machines(read_text_file(file, kMostBytes), printable(file.string()));
}

auto find_machine(std::vector<Kept>& machines, const std::string& name) {
  return std::find_if(machines.begin(), machines.end(),
                      [&](const Kept& each) { return each.calibration.machine == name; });
}

// Writes back what `change` makes of the file's machines, unless it returns false. They are read
// only now, with no other process between: whatever that one measured meanwhile stays. A damaged
// file holds none. Returns why it could not be kept, if so.
std::string update_machines(const fs::path& file,
                            const std::function<bool(std::vector<Kept>&)>& change) {
  if (file.empty()) return "";
  try {
    if (file.has_parent_path()) make_directories(file.parent_path());
    const DirectoryLock lock(file.has_parent_path() ? file.parent_path() : ".");
    std::vector<Kept> machines;
    try {
      machines = read_machines(file);
    } catch (const Error&) {
    }
    if (change(machines)) write_file_atomically(file, machines_text(machines));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string keep(const fs::path& file, const Kept& made) {
  return update_machines(file, [&](std::vector<Kept>& machines) {
    const auto old = find_machine(machines, made.calibration.machine);
    if (old != machines.end()) machines.erase(old);
    if (machines.size() == kMostMachines) machines.erase(machines.begin());
    machines.push_back(made);
    return true;
  });
}

}  // namespace

Calibration machine_calibration(const fs::path& file, const Measuring& measuring) {
  const auto say = [&](const std::string& line) {
    if (measuring.say) measuring.say(line);
  };
  const std::string name = printable(file.string());
  std::string why = measuring.first_use + ": measuring";
  std::vector<Kept> machines;
  try {
    machines = read_machines(file);
  } catch (const Error&) {
    why = name + " is damaged: measuring again";
  }
  const auto found = find_machine(machines, measuring.machine);
  if (found != machines.end()) {
    const bool expired = found->expires != 0 && std::time(nullptr) >= found->expires;
    if (is_complete(found->calibration, measuring.wanted) && !expired) return found->calibration;
    why = expired ? "the last was made while other programs ran: measuring again"
                  : name + " is of another version: measuring again";
  }
  say(fmt::format("calibration: {}, about {} s", why, measuring.seconds));
  const Measurement measured = measuring.measure();
  const Calibration made{measuring.machine, measured.points};
  if (made.points.empty()) {
    say("warning: calibration: there was no memory to measure in, or the measuring process died: "
        "predicted times are those of a middling machine");
    return made;
  }
  if (measured.busy) {
    say(
        fmt::format("warning: calibration: other programs were running: predicted times are rough "
                    "for the next {} minutes",
                    kBusySeconds / 60));
  }
  const std::string why_not =
      keep(file, {made, measured.busy ? std::time(nullptr) + kBusySeconds : 0});
  if (!why_not.empty()) say("warning: calibration: not kept: " + why_not);
  return made;
}

void learn_pace(const fs::path& file, const std::string& machine, double pace) {
  if (!(pace >= 1 / kSlowestPace && pace <= kSlowestPace)) return;
  update_machines(file, [&](std::vector<Kept>& machines) {
    const auto found = find_machine(machines, machine);
    if (found == machines.end()) return false;
    std::vector<double>& paces = found->calibration.paces;
    if (paces.size() == kMostPaces) paces.erase(paces.begin());
    paces.push_back(pace);
    return true;
  });
}

namespace {

// The share of all CPUs that other programs had in the meantime.
class Others {
 public:
  double share() const {
    const double wall = now() - start_;
    const auto cpus = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
    return (cpu_seconds_of_others() - before_) / std::max(1e-9, wall * cpus);
  }

 private:
  static double now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
  }
  const double start_ = now();
  const double before_ = cpu_seconds_of_others();
};

}  // namespace

std::vector<CostPoint> measured_points(const Device& device, const std::vector<double>& seconds) {
  std::vector<CostPoint> points;
  for (const OpParams& shape : device.measured_shapes()) {
    points.push_back(cost_point(shape, seconds.empty() ? 0 : seconds[points.size()]));
  }
  return points;
}

Measurement measure_device(const Device& device) {
  constexpr double kDisturbing = 0.15;
  const Others others;
  std::vector<double> seconds;
  for (const OpTiming& timing : device.measure()) seconds.push_back(timing.seconds);
  return {measured_points(device, seconds), others.share() > kDisturbing};
}

}  // namespace ebb
