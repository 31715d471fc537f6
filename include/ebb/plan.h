// How a training run will be carried out: every byte and every operation, before any is taken or
// run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ebb/data.h>
#include <ebb/machine.h>
#include <ebb/model.h>
#include <ebb/training.h>

namespace ebb {

// A value that never changes; copies are cheap and safe from any thread. Making one reads no clock
// and no file.
class TrainingPlan {
 public:
  // The fastest plan within the budget, or the smallest that there is: fits() says which. Fails
  // with Exit::usage on settings that cannot be, or contradict each other or the data.
  TrainingPlan(const MeasuredMachine& machine, const Model& model, const Training& training,
               const Data& data);
  // Without data, for what is only planned: the loader's memory is left out.
  TrainingPlan(const MeasuredMachine& machine, const Model& model, const Training& training);

  bool fits() const;
  // Fails with Exit::budget unless it fits; the hint names what would. Plans again for that.
  void check_fits() const;

  int64_t budget_bytes() const;
  int64_t process_bytes() const;  // of the whole process
  int64_t arena_bytes() const;    // of that, what the run takes in one piece and works in
  double step_seconds() const;    // predicted
  int64_t parameters() const;     // of the model
  int64_t micro_batch() const;    // samples that go through the network together
  // The least that any choice takes of a process. Plans again.
  int64_t floor_bytes() const;

  // The arena's bytes at its fullest, by purpose ("weight", "activation", ...), and "gap": what
  // none of them takes. Their sum is arena_bytes().
  struct Purpose {
    std::string name;
    int64_t bytes;
  };
  std::vector<Purpose> ledger() const;

  struct Technique {
    std::string name, setting, kind;  // kind: "exact", "rounding" or "lossy"
  };
  std::vector<Technique> techniques() const;  // in use

  // What `ebb plan` prints, as a table and with --json. Plan again for what else would do.
  std::string text() const;
  std::string json() const;

  // For Ebb's own use.
  struct Impl;
  explicit TrainingPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ebb
