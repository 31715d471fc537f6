#include "train/calibration.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "formats/atomic_file.h"
#include "formats/input_file.h"
#include "formats/json_reader.h"
#include "kernels/cpu/device.h"
#include "run/disk_store.h"
#include "run/process.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kVersion = 8;  // of the file and of how is measured
constexpr int64_t kMostBytes = 1 << 20;
constexpr int64_t kBusySeconds = 600;  // for so long a disturbed measurement is better than none
constexpr size_t kMostMachines = 16, kMostPoints = 1000, kMostPaces = 9;
constexpr double kSlowestPace = 100;

struct Kept {
  Calibration calibration;
  int64_t expires = 0;  // seconds since 1970; 0: never
};

// ---- the file:
// {"version":N,"machines":[{"machine":"...","expires":0,"paces":[1.02,..],
//                           "points":[["gelu",x,y,seconds],..]},..]}

double read_within(JsonReader& json, double least, double most) {
  const double value = json.read_real();
  if (!(value >= least && value <= most)) json.refuse("a size or time", "one that can be");
  return value;
}

double read_size(JsonReader& json, double least, double most) {
  if (!json.next_element()) json.refuse("the end of a point", "four values");
  return read_within(json, least, most);
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
      json.begin_array();
      while (json.next_element()) {
        if (machine.paces.size() == kMostPaces) json.refuse("more paces", "fewer");
        machine.paces.push_back(read_within(json, 1 / kSlowestPace, kSlowestPace));
      }
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
    text += fmt::format("{}\n{{\"machine\":{},\"expires\":{},\"paces\":[{}],\"points\":[",
                        &kept == &machines[0] ? "" : ",", json_quote(machine.machine), kept.expires,
                        fmt::join(machine.paces, ","));
    for (const CostPoint& point : machine.points) {
      text += fmt::format("{}\n[{},{},{},{}]", &point == &machine.points[0] ? "" : ",",
                          json_quote(point.kind), point.x, point.y, point.seconds);
    }
    text += "]}";
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
// file holds none.
void update_machines(const fs::path& file, const std::function<bool(std::vector<Kept>&)>& change) {
  if (file.empty()) return;
  try {
    if (file.has_parent_path()) make_directories(file.parent_path());
    const DirectoryLock lock(file.has_parent_path() ? file.parent_path() : ".");
    std::vector<Kept> machines;
    try {
      machines = read_machines(file);
    } catch (const Error&) {
    }
    if (change(machines)) write_file_atomically(file, machines_text(machines));
  } catch (const Error& error) {
    fmt::print(stderr, "warning: calibration: not kept: {}\n", error.what());
  }
}

void keep(const fs::path& file, const Kept& made) {
  update_machines(file, [&](std::vector<Kept>& machines) {
    const auto old = find_machine(machines, made.calibration.machine);
    if (old != machines.end()) machines.erase(old);
    if (machines.size() == kMostMachines) machines.erase(machines.begin());
    machines.push_back(made);
    return true;
  });
}

}  // namespace

Calibration machine_calibration(const fs::path& file, const Measuring& measuring) {
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
  fmt::print(stderr, "calibration: {}, about {} s\n", why, measuring.seconds);
  const Measurement measured = measuring.measure();
  const Calibration made{measuring.machine, measured.points};
  if (made.points.empty()) {
    fmt::print(stderr,
               "warning: calibration: there was no memory to measure in, or the measuring process "
               "died: predicted times are those of a middling machine\n");
    return made;
  }
  if (measured.busy) {
    fmt::print(stderr,
               "warning: calibration: other programs were running: predicted times are rough for "
               "the next {} minutes\n",
               kBusySeconds / 60);
  }
  keep(file, {made, measured.busy ? std::time(nullptr) + kBusySeconds : 0});
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

// More threads than CPUs only take turns: what ops take then is what they take with as many as run.
int calibrated_threads() { return std::min(team_threads(), allowed_cpus()); }

}  // namespace

void learn_from_steps(double seconds, double predicted, const CostModel& costs) {
  constexpr double kShort = 0.2;
  if (seconds < kShort || predicted <= 0) return;
  learn_pace(calibration_file(), cpu_identity(calibrated_threads()),
             seconds / predicted * costs.pace());
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

// Each shape's seconds, then the share of others.
std::vector<double> measured_numbers() {
  const Others others;
  std::vector<double> numbers;
  for (const OpTiming& timing : calibrate_cpu()) numbers.push_back(timing.seconds);
  numbers.push_back(others.share());
  return numbers;
}

constexpr int64_t kCalibrationBytes = 100 << 20;

// In a process of its own: what measuring takes is never part of this one, whose budget may be
// smaller. Nothing comes back from a process that was killed.
Measurement calibrate_apart() {
  if (available_memory_bytes() < kCalibrationBytes) return {};
  int ends[2];
  if (pipe(ends) != 0) return {};
  end_team();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    set_team_threads(calibrated_threads());
    try {
      const std::vector<double> numbers = measured_numbers();
      const auto bytes = static_cast<ssize_t>(numbers.size() * sizeof(double));
      _exit(write(ends[1], numbers.data(), bytes) == bytes ? 0 : 1);
    } catch (const std::exception&) {
      _exit(1);
    }
  }
  close(ends[1]);
  std::vector<double> numbers;
  for (double number = 0; child > 0;) {
    const ssize_t got = read(ends[0], &number, sizeof number);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof number) break;
    numbers.push_back(number);
  }
  close(ends[0]);
  int status = 1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const std::vector<OpParams> shapes = calibration_shapes();
  if (status != 0 || numbers.size() != shapes.size() + 1) return {};
  constexpr double kDisturbing = 0.15;
  Measurement made{{}, numbers.back() > kDisturbing};
  for (size_t i = 0; i < shapes.size(); ++i) {
    made.points.push_back(cost_point(shapes[i], numbers[i]));
  }
  return made;
}

std::vector<CostPoint> wanted_points() {
  std::vector<CostPoint> wanted;
  for (const OpParams& shape : calibration_shapes()) wanted.push_back(cost_point(shape, 0));
  return wanted;
}

// ---- a disk: the seconds of so many bytes, each way

constexpr double kDiskBytes = 1e9;

DiskRates disk_rates(const fs::path& directory) {
  const auto points = [](double read, double write) {
    return std::vector<CostPoint>{{"disk read", kDiskBytes, 1, read},
                                  {"disk write", kDiskBytes, 1, write}};
  };
  const auto measure = [&]() -> Measurement {
    const DiskSpeed speed = measure_disk(directory);
    return {points(kDiskBytes / speed.read, kDiskBytes / speed.write), false};
  };
  const Calibration found = machine_calibration(
      calibration_file(),
      {disk_identity(directory), "first use of this disk", 1, points(0, 0), measure});
  return {kDiskBytes / found.points[0].seconds, kDiskBytes / found.points[1].seconds};
}

}  // namespace

namespace {

CostModel with_disk(CostModel costs, const fs::path& offload) {
  if (!offload.empty()) costs.set_disk(disk_rates(offload));
  return costs;
}

}  // namespace

CostModel machine_costs(const fs::path& offload) {
  const Measuring measuring{cpu_identity(calibrated_threads()),
                            "first use on this machine with these threads", 5, wanted_points(),
                            calibrate_apart};
  return with_disk(CostModel(machine_calibration(calibration_file(), measuring)), offload);
}

CostModel machine_costs_now(const fs::path& offload) {
  return with_disk(CostModel({cpu_identity(calibrated_threads()), calibrate_apart().points}),
                   offload);
}

}  // namespace ebb
