// Runs of a whole step in any way, and what they leave behind.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "model_fixture.h"
#include "op_inputs.h"

namespace ebb {

using Bits = std::map<std::string, std::string>;
// What a run leaves behind, by name: residents, and what the host reads.
inline Bits results(Rig& machine) {
  Bits bits;
  const Plan& plan = machine.plan();
  const auto note = [&](Buf b) {
    const Buffer& buffer = plan.program.buffer(b);
    std::string& to = bits[buffer.name];
    to.resize(buffer.bytes());
    machine.memory().read(to.data(), plan, b, 0, buffer.bytes());
  };
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Buffer& buffer = plan.program.buffers[i];
    if (buffer.resident && buffer.purpose != Purpose::staging) note(Buf{static_cast<int32_t>(i)});
  }
  for (const Buf b : plan.program.outputs) note(b);
  return bits;
}

inline Bits run_on(const Machine& on, const DitConfig& config, StepSpec spec,
                   const Choices& choices, Executor::Mode mode = Executor::Mode::normal) {
  spec.choices = choices;
  Rig machine({write_step(config, spec, *on.device)}, on, mode);
  machine.set_weights(config);
  for (int64_t k = 0; k < (spec.update ? 2 : 1); ++k) {
    machine.set_batch(config, spec.batch);
    if (spec.given_noise) {
      Random random(11);
      machine.set(kBatchNoise,
                  random_column(spec.batch * config.channels * config.pixels(), random));
      machine.set(kBatchTime, random_times(spec.batch, config.objective, random));
    }
    machine.executor().run(training_scalars(k));
    EXPECT_EQ(machine.executor().peak_bytes(), machine.plan().bytes);
  }
  return results(machine);
}

inline Bits run_with(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                     Executor::Mode mode = Executor::Mode::normal) {
  return run_on(with_disk(middling_machine()), config, spec, choices, mode);
}

inline StepSpec updating(float clip, int64_t batch) {
  StepSpec spec = step_spec(batch);
  spec.clip = clip;
  return spec;
}

inline void expect_same(const Bits& a, const Bits& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, bits] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    EXPECT_TRUE(b.at(name) == bits) << name;
  }
}

// In micro-batches, layer by layer, released, with the state on a disk and with more threads a step
// leaves the bits that it leaves in the plainest way. Those.
inline Bits expect_exact_techniques(const DitConfig& config, const StepSpec& spec) {
  Bits plain = run_with(config, spec, {});
  const Choices released{.micro_batch = 3, .layer_major = true, .release = true};
  expect_same(plain, run_with(config, spec, {.micro_batch = 1}));
  expect_same(plain, run_with(config, spec, released));
  Choices away = released;
  away.offload = to_disk(true, true, true);
  expect_same(plain, run_with(config, spec, away));
  set_team_threads(3);
  expect_same(plain, run_with(config, spec, {}));
  set_team_threads(1);
  return plain;
}

}  // namespace ebb
