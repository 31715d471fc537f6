#include "cli/this_machine.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/resolve.h"
#include "kernels/cpu/device.h"
#include "machine/budget.h"
#include "machine/machine_file.h"
#include "machine/process.h"

namespace ebb {

namespace {

const Device& device_with(int threads) { return cpu_device(threads); }

constexpr int64_t kCalibrationBytes = 100 << 20;

// Each shape's seconds, then whether others disturbed, from a child's end of a pipe to ours.
std::vector<double> read_numbers(int from) {
  std::vector<double> numbers;
  for (double number = 0;;) {
    const ssize_t got = read(from, &number, sizeof number);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof number) return numbers;
    numbers.push_back(number);
  }
}

void write_numbers(int to, const Measurement& measured) {
  std::vector<double> numbers;
  for (const CostPoint& point : measured.points) numbers.push_back(point.seconds);
  numbers.push_back(measured.busy ? 1 : 0);
  const auto bytes = static_cast<ssize_t>(numbers.size() * sizeof(double));
  _exit(write(to, numbers.data(), bytes) == bytes ? 0 : 1);
}

// In a process of its own: what measuring takes is never part of this one, whose budget may be
// smaller. Nothing comes back from a process that was killed.
Measurement measure_apart(const Device& device) {
  if (available_memory_bytes() < kCalibrationBytes) return {};
  int ends[2];
  if (pipe(ends) != 0) return {};
  end_team();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    try {
      write_numbers(ends[1], measure_device(device));
    } catch (const std::exception&) {
      _exit(1);
    }
  }
  close(ends[1]);
  std::vector<double> numbers;
  if (child > 0) numbers = read_numbers(ends[0]);
  close(ends[0]);
  int status = 1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  Measurement made{measured_points(device, {}), false};
  if (status != 0 || numbers.size() != made.points.size() + 1) return {};
  for (size_t i = 0; i < made.points.size(); ++i) made.points[i].seconds = numbers[i];
  made.busy = numbers.back() != 0;
  return made;
}

void warn(const std::string& line) { fmt::print(stderr, "warning: {}\n", line); }

}  // namespace

void resolve_threads(const Settings& s) {
  if (s.threads > 0) set_team_threads(static_cast<int>(s.threads));
  if (team_threads() > allowed_cpus()) {
    warn(fmt::format("{} threads on {} CPUs", team_threads(), allowed_cpus()));
  }
}

const Device& this_device() { return device_with(team_threads()); }

MeasureOptions measure_options(const Settings& s) {
  MeasureOptions options;
  options.device = &this_device();
  options.timed = &device_with(std::min(team_threads(), allowed_cpus()));
  options.offload = resolve_offload(s);
  options.cache = calibration_file();
  options.measure = measure_apart;
  options.say = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  return options;
}

Machine resolve_machine(const Settings& s) {
  resolve_threads(s);
  if (s.machine.empty()) return measure_machine(measure_options(s));
  return read_machine(s.machine, s.offload, device_with);
}

int64_t resolve_budget(const Settings& s, const Machine& machine) {
  if (s.memory == 0) return default_budget_bytes(machine);
  if (s.memory > machine.available_bytes) {
    warn(fmt::format("--memory {} is more than the {} that are available", format_size(s.memory),
                     format_size(machine.available_bytes)));
  }
  return s.memory;
}

}  // namespace ebb
