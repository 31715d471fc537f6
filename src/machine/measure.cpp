#include "machine/measure.h"

#include "machine/outside.h"
#include "machine/process.h"
#include "run/disk_store.h"

namespace ebb {

namespace {

const Device& timed(const MeasureOptions& options) {
  return options.timed != nullptr ? *options.timed : *options.device;
}

// The seconds of so many bytes, each way.
LaneKind measured_disk(const MeasureOptions& options) {
  constexpr double kBytes = 1e9;
  const auto points = [](double read, double write) {
    return std::vector<CostPoint>{{"disk read", kBytes, 1, read}, {"disk write", kBytes, 1, write}};
  };
  const auto measure = [&]() -> Measurement {
    const DiskSpeed speed = measure_disk(options.offload);
    return {points(kBytes / speed.read, kBytes / speed.write), false};
  };
  const Calibration found =
      machine_calibration(options.cache, {disk_identity(options.offload), "first use of this disk",
                                          1, points(0, 0), measure, options.say});
  LaneKind lane = disk_lane(options.offload);
  lane.fetch_rate = kBytes / found.points[0].seconds;
  lane.store_rate = kBytes / found.points[1].seconds;
  return lane;
}

int64_t outside_of(const MeasureOptions& options) {
  const int64_t measured = measure_outside(options.device->threads());
  std::filesystem::path file = options.cache;
  if (file.empty()) return measured;
  return first_measured(file.replace_extension(".outside.json"), options.device->identity(),
                        measured);
}

}  // namespace

Machine measure_machine(const MeasureOptions& options) {
  const Device& device = timed(options);
  Machine machine;
  machine.device = options.device;
  machine.calibration = machine_calibration(
      options.cache,
      {device.identity(), "first use on this machine with these threads", 5,
       measured_points(device, {}), [&] { return options.measure(device); }, options.say});
  machine.costs = CostModel(machine.calibration);
  if (!options.offload.empty()) machine.lanes.push_back(measured_disk(options));
  machine.outside_bytes = outside_of(options);
  machine.available_bytes = available_memory_bytes();
  return machine;
}

Machine measured_again(const Machine& machine, const MeasureOptions& options) {
  Machine again = machine;
  again.calibration = {timed(options).identity(), options.measure(timed(options)).points};
  again.costs = CostModel(again.calibration);
  return again;
}

void learn_from_steps(double seconds, double predicted, const Machine& machine,
                      const MeasureOptions& options) {
  constexpr double kShort = 0.2;
  if (seconds < kShort || predicted <= 0) return;
  learn_pace(options.cache, machine.calibration.machine,
             seconds / predicted * machine.costs.pace());
}

}  // namespace ebb
