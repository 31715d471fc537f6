#include "plan/techniques.h"

#include "model/optimizer.h"
#include "plan/technique_kinds.h"

namespace ebb {

const char* exactness_name(Exactness kind) {
  constexpr const char* kNames[] = {"exact", "rounding", "lossy"};
  return kNames[static_cast<int>(kind)];
}

const std::vector<Technique>& techniques() {
  static const std::vector<Technique> kTechniques = {
      recompute_technique(), micro_batches_technique(), order_technique(),     release_technique(),
      offload_technique(),   precision_technique(),     gradients_technique(), moments_technique(),
      average_technique(),   optimizer_technique()};
  return kTechniques;
}

std::vector<AllowWord> allow_words() {
  std::vector<AllowWord> all;
  for (const Technique& t : techniques()) all.insert(all.end(), t.words.begin(), t.words.end());
  return all;
}

void check_decisions(const Decisions& d, const StepSpec& spec) {
  const bool several = d.micro_batch && accumulates(spec, *d.micro_batch);
  if (d.micro_batch && *d.micro_batch > spec.batch) {
    fail(Exit::usage,
         fmt::format("--micro-batch: found {}, more than --batch {}", *d.micro_batch, spec.batch),
         "a micro-batch is a part of the batch");
  }
  if (several && d.release.value_or(false) && !d.layer_major.value_or(true)) {
    fail(Exit::usage,
         fmt::format("--release on contradicts --order batch with --micro-batch {} of --batch {}: "
                     "a gradient is complete only after the last micro-batch",
                     *d.micro_batch, spec.batch),
         "leave --order to the planner, or --micro-batch at the whole batch");
  }
  const OptimizerKind& optimizer = optimizers()[static_cast<size_t>(spec.optimizer)];
  if (d.moments.value_or(Moments::f32) == Moments::coded && !optimizer.codes_moments) {
    fail(Exit::usage,
         fmt::format("--moments 8bit contradicts --optimizer {}: it keeps no moments of the "
                     "parameters' size",
                     optimizer.name),
         "leave --moments out");
  }
  if (d.optimizer && !spec.update) {
    fail(Exit::usage, "--optimizer contradicts the gradients that are asked for",
         "leave --optimizer out");
  }
  if (d.release.value_or(false) && !spec.update) {
    fail(Exit::usage, "--release on contradicts the gradients that are asked for",
         "leave --release out");
  }
}

int used_reluctantly(const Choices& choices) {
  int sum = 0;
  for (const Technique& t : techniques()) sum += t.reluctance(choices);
  return sum;
}

std::vector<TechniqueUse> techniques_in_use(const DitConfig& config, const StepSpec& spec) {
  std::vector<TechniqueUse> used;
  for (const Technique& t : techniques()) {
    std::string setting = t.setting(config, spec);
    if (!setting.empty()) used.push_back({t.name, std::move(setting), exactness_name(t.kind)});
  }
  return used;
}

}  // namespace ebb
