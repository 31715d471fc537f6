// What a planned run holds while it lives: its memory, its state and its step.
#pragma once

#include <optional>
#include <string_view>

#include "plan/planned_run.h"
#include "run/executor.h"
#include "state/state.h"

namespace ebb {

class Session {
 public:
  // Takes the memory of the plans. All must outlive it; several may live side by side.
  Session(const DitConfig& config, const PlannedRun& planned, const Machine& machine,
          Executor::Mode mode = Executor::Mode::normal)
      : config_(config),
        planned_(planned),
        device_(*machine.device),
        memory_(planned.plans, machine),
        step_(planned.step_plan(), device_, memory_, mode),
        state_(planned.step_plan(), memory_, config, planned.step) {
    if (!leaves_updates(config, planned.step)) return;
    settle_.emplace(planned.plans.at(kSettleProgram), device_, memory_, mode);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const DitConfig& config() const { return config_; }
  const PlannedRun& planned() const { return planned_; }
  const Device& device() const { return device_; }
  RunMemory& memory() { return memory_; }
  Executor& step() { return step_; }
  const Executor& step() const { return step_; }
  State& state() { return state_; }
  const State& state() const { return state_; }
  // Carries out what steps have left for later. No step is under way.
  void settle() {
    if (settle_) settle_->run({});
  }
  State& settled() {
    settle();
    return state_;
  }

  // Random weights by the seed, and the average at them: those that are here, each with the same
  // bits on whichever rank it is. Moments are zero from the start.
  void initialise(uint64_t seed);

  // Where the host reaches an input or a resident of the step by itself.
  template <typename T = std::byte>
  std::span<T> host(std::string_view name) {
    const Plan& plan = planned_.step_plan();
    const std::span<std::byte> bytes = memory_.host(plan, plan.program.at(name));
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  void choose_left(const ParamSpec& spec, uint64_t seed);
  struct Values {
    float* to;
    int64_t first, count;
  };
  void start_slice(const StateTensor& tensor, const ParamSpec& spec, uint64_t seed,
                   const Values& values);
  void start_sparse(const ParamSpec& spec, const std::string& name, uint64_t seed);

  const DitConfig& config_;
  const PlannedRun& planned_;
  const Device& device_;
  RunMemory memory_;
  Executor step_;
  std::optional<Executor> settle_;
  State state_;
};

}  // namespace ebb
