#include <ebb/machine.h>

#include <fmt/format.h>

#include <algorithm>

#include "api/impl.h"
#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "kernels/cpu/device.h"
#include "machine/budget.h"
#include "machine/machine_file.h"

namespace ebb {

namespace {

std::shared_ptr<const MeasuredMachine::Impl> hold(Machine machine) {
  return std::make_shared<const MeasuredMachine::Impl>(MeasuredMachine::Impl{std::move(machine)});
}

}  // namespace

const Device& device_with(int threads) { return cpu_device(threads); }

void check_offload(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (directory.empty() || std::filesystem::is_directory(directory, ignored)) return;
  fail(Exit::disk, fmt::format("--offload: {} is not a directory", printable(directory.string())),
       "make it first, on a disk with room");
}

MeasureOptions measuring(const MeasuredMachine::Options& o) {
  constexpr int kMostThreads = 1024;
  if (o.threads < 0 || o.threads > kMostThreads) {
    fail(Exit::usage, fmt::format("--threads: found {}, wanted 1 to {}", o.threads, kMostThreads),
         "leave it at 0 for as many as there are CPUs");
  }
  check_offload(o.offload);
  const int threads = o.threads > 0 ? o.threads : team_threads();
  MeasureOptions made;
  made.device = &device_with(threads);
  made.timed = &device_with(std::min(threads, allowed_cpus()));
  made.offload = o.offload;
  made.cache = o.cache;
  made.say = o.say;
  made.measure = [time = o.time](const Device& device) -> Measurement {
    if (!time) return {};
    const MeasuredMachine::Times times = time(device.threads());
    if (times.seconds.size() != device.measured_shapes().size()) return {};
    return {measured_points(device, times.seconds), times.busy};
  };
  return made;
}

int64_t budget_of(int64_t memory, const Machine& machine) {
  return memory == 0 ? default_budget_bytes(machine) : memory;
}

MeasuredMachine MeasuredMachine::measure(const Options& options) {
  return MeasuredMachine(hold(measure_machine(measuring(options))));
}

MeasuredMachine::Times MeasuredMachine::time_operations(int threads) {
  const Measurement measured = measure_device(device_with(threads));
  Times times{{}, measured.busy};
  for (const CostPoint& point : measured.points) times.seconds.push_back(point.seconds);
  return times;
}

std::filesystem::path MeasuredMachine::usual_cache() { return calibration_file(); }

MeasuredMachine MeasuredMachine::read(const std::filesystem::path& file,
                                      const std::string& offload) {
  return MeasuredMachine(hold(read_machine(file, offload, device_with)));
}

MeasuredMachine MeasuredMachine::from_json(const std::string& text, const std::string& where,
                                           const std::string& offload) {
  return MeasuredMachine(hold(machine_from_json(text, where, offload, device_with)));
}

std::string MeasuredMachine::json() const { return machine_json(inside(*this)); }
int MeasuredMachine::threads() const { return inside(*this).device->threads(); }
int64_t MeasuredMachine::available_bytes() const { return inside(*this).available_bytes; }
int64_t MeasuredMachine::outside_bytes() const { return inside(*this).outside_bytes; }

}  // namespace ebb
