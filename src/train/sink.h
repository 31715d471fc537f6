// What a run tells while it goes on, and whom it asks whether to go on. The run itself prints
// nothing.
#pragma once

#include <ebb/step_record.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ebb {

struct DataInfo;
struct PlannedRun;
struct TrainOptions;

// Before the first step.
struct RunStarted {
  const TrainOptions& options;
  const DataInfo& data;
  const PlannedRun& planned;
  int64_t done;                        // steps of an earlier run that this one goes on with
  std::vector<std::string> notes;      // what the user should know of its folder and data,
  std::vector<std::string> converted;  // and of a checkpoint that another kind of run wrote
};

// Of `count` samples so many are drawn; of the next ones so many of `steps` are done.
struct DrawingRecord {
  int64_t drawn, count;
  int64_t together;  // drawn at a time
  int step, steps;
};

class RunSink {
 public:
  virtual ~RunSink() = default;
  virtual void started(const RunStarted& /*start*/) {}
  virtual void step(const StepRecord& /*record*/) {}
  virtual void note(const std::string& /*line*/) {}
  virtual void drawing(const DrawingRecord& /*record*/) {}
};

struct RunControl {
  // Asked between steps and before every call of the network.
  std::function<bool()> stop = [] { return false; };
  // While a checkpoint is written: it must not be cut off.
  std::function<void(bool under_way)> saving = [](bool) {};
};

}  // namespace ebb
