// Random training steps with random wishes of the user, each one that Ebb accepts.
#pragma once

#include <algorithm>
#include <string>

#include "model_fixture.h"
#include "plan/search.h"
#include "schedule_fixture.h"

namespace ebb {

// Under a sanitizer a part of the runs: it is there for every line of code, not for every case.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSanitizedShare = 10;
#else
inline constexpr int kSanitizedShare = 1;
#endif

struct RandomRun {
  DitConfig config;
  StepSpec step;
  Decisions decisions;

  bool uneven() const {
    const auto& blocks = config.blocks;
    return !std::equal(blocks.begin() + 1, blocks.end(), blocks.begin());
  }
  std::string text() const {
    std::string t = "width " + std::to_string(config.width) + " depth " +
                    std::to_string(config.depth()) + " tokens " + std::to_string(config.tokens()) +
                    " batch " + std::to_string(step.batch) + " clip " + std::to_string(step.clip);
    if (uneven()) t += " uneven";
    if (!step.update) t += " gradients only";
    const Decisions& forced = decisions;
    if (forced.micro_batch) t += " micro-batch " + std::to_string(*forced.micro_batch);
    if (forced.layer_major) t += *forced.layer_major ? " layer-major" : " batch-major";
    if (forced.release) t += *forced.release ? " release" : " no release";
    if (forced.keep) t += " keep " + forced.keep->recomputed();
    return t;
  }
};

inline DitConfig random_config(Random& random, int most_depth = 8) {
  DitConfig c;
  const int64_t widths[] = {16, 20, 24, 32, 48, 64, 96, 128};
  c.width = widths[pick(random, 8)];
  c.patch = 1 << pick(random, 3);
  c.image_size = c.patch * (1 + pick(random, 6));
  c.channels = 1 + pick(random, 4);
  c.classes = pick(random, 3) == 0 ? 0 : 1 + pick(random, 20);
  c.objective = pick(random, 2) == 0 ? Objective::ddpm : Objective::flow;
  c.learn_sigma = c.objective == Objective::ddpm && pick(random, 2) == 0;
  const QkNormKind norms[] = {QkNormKind::none, QkNormKind::layer, QkNormKind::rms};
  c.qk_norm = norms[pick(random, 3)];
  const int64_t heads = int64_t{1} << pick(random, 3);
  set_blocks(c, 1 + pick(random, most_depth), heads);
  if (pick(random, 3) == 0) {  // what pruning leaves
    for (BlockShape& block : c.blocks) {
      block = {1 + pick(random, static_cast<int>(heads)),
               1 + pick(random, static_cast<int>(4 * c.width))};
      const int half = pick(random, 6);
      if (half == 0) block.heads = 0;
      if (half == 1) block.mlp = 0;
    }
  }
  return c;
}

inline StepSpec random_step(Random& random, int most_batch) {
  StepSpec spec = step_spec(1 + pick(random, most_batch), pick(random, 5) > 0);
  spec.ema = pick(random, 3) > 0;
  spec.clip = pick(random, 2) == 0 ? 0.0f : 0.5f;
  spec.weight_decay = pick(random, 2) == 0 ? 0 : 0.1;
  const DType types[] = {DType::u8, DType::f16, DType::f32};
  if (pick(random, 2) == 0) {
    spec.feeding = {true, types[pick(random, 3)], pick(random, 2) == 0, 1 + pick(random, 100'000)};
  }
  return spec;
}

// Each wish alone, together with others, or none; those that contradict each other are drawn again.
inline Decisions random_forced(Random& random, const DitConfig& config, const StepSpec& spec) {
  while (true) {
    Decisions f;
    const auto wished = [&] { return pick(random, 3) == 0; };
    if (wished()) f.micro_batch = 1 + pick(random, static_cast<int>(spec.batch));
    if (wished()) f.layer_major = pick(random, 2) == 0;
    if (wished()) f.release = pick(random, 2) == 0;
    if (wished()) f.keep = random_keep(random);
    if (wished()) f.label_rows = pick(random, 2) == 0;
    try {
      check_decisions(f, config, spec);
      return f;
    } catch (const Error&) {
    }
  }
}

inline RandomRun random_run(Random& random, int most_batch, int most_depth = 8) {
  RandomRun run{random_config(random, most_depth), random_step(random, most_batch), {}};
  run.decisions = random_forced(random, run.config, run.step);
  return run;
}

// Between two numbers, both included.
inline int64_t between(int64_t low, int64_t high, Random& random) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

}  // namespace ebb
