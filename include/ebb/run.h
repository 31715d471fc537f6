// A training run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ebb/drawing.h>
#include <ebb/plan.h>
#include <ebb/step_record.h>

namespace ebb {

// Takes the plan's memory when it is made, and no more later. For one thread at a time; runs do not
// disturb each other, whichever threads use them. The result is a function of model, settings and
// data: neither of the budget, unless rounding was allowed, nor of threads or time.
class Run {
 public:
  // Begins with random weights. Fails with Exit::budget where the plan does not fit or the system
  // refuses the memory, with Exit::usage where it was made without data.
  explicit Run(const TrainingPlan& plan);
  ~Run();
  Run(Run&&) noexcept;
  Run& operator=(Run&&) noexcept;

  // One optimizer step. Fails with Exit::data when the data cannot be read: nothing is changed
  // then; and with Exit::numbers when loss or gradient stay not finite: then the run can only
  // load().
  StepRecord step();
  int64_t steps_done() const;

  // A checkpoint: the whole state, as the program writes it. It is there whole or not at all. Fails
  // with Exit::disk.
  void save(const std::filesystem::path& file) const;
  // Goes on from one, with the bits of a run that was never stopped. Of the same model, batch,
  // seed, optimizer and data; techniques and budget may be others. Fails with Exit::disk or
  // Exit::data, naming what differs; the run is as it was then, unless the file ends while it is
  // read.
  void load(const std::filesystem::path& file);

  // Draws samples. Each is a function of the state, the seed, its place and its label. False: it
  // was stopped. Fails with Exit::usage on a label that the model does not have, and with
  // Exit::numbers where what is drawn is not finite.
  bool draw(int64_t count, uint64_t seed, const DrawingCalls& calls);
  // The same, one for each label and all at once: (labels, channels, size, size). Memory that no
  // plan knows of.
  std::vector<float> draw(std::span<const int32_t> labels, uint64_t seed);

  // A tensor of the state: weights under the reference's names, the average's with "ema." before
  // it, moments with "m." and the like. Fails with Exit::usage on another name. Memory that no plan
  // knows of.
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::vector<std::string> tensor_names() const;
  Tensor tensor(const std::string& name) const;

  int64_t arena_peak_bytes() const;  // measured so far: at most what the plan says
  // What a person should know of the data and the checkpoint since the last call, a line each.
  std::vector<std::string> take_notes();
  const TrainingPlan& plan() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb
