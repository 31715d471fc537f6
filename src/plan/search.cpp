#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/profile.h"
#include "plan/schedules.h"

namespace ebb {

namespace {

bool accumulates(const StepSpec& spec, int64_t micro_batch) {
  return micro_batch_count(spec.batch, micro_batch) > 1;
}

// The batch in 1, 2, 3, 4, 6, 8, 12, 16 ... parts, as equal as they can be.
std::vector<int64_t> micro_batch_sizes(int64_t batch) {
  std::vector<int64_t> sizes;
  for (int64_t power = 1; power <= batch; power *= 2) {
    for (const int64_t parts : {power, power + power / 2}) {
      const int64_t size = (batch + parts - 1) / parts;
      if (sizes.empty() || size < sizes.back()) sizes.push_back(size);
    }
  }
  return sizes;
}

// A parameter's state goes to the file after its update: with release, while the next layer runs.
std::vector<Offload> offloads(const Forced& forced, bool release) {
  std::vector<Offload> all = {{}};
  if (!forced.allowed.offload) return all;
  all.push_back({false, false, true});
  if (!release) return all;
  for (const bool inputs : {false, true}) {
    for (const bool weights : {false, true}) all.push_back({true, weights, inputs});
  }
  return all;
}

// The ways to carry out the step, but for the schedule.
std::vector<Choices> ways(const StepSpec& spec, const Forced& forced) {
  std::vector<Choices> all;
  const std::vector<int64_t> sizes = forced.micro_batch ? std::vector<int64_t>{*forced.micro_batch}
                                                        : micro_batch_sizes(spec.batch);
  for (const int64_t size : sizes) {
    const bool several = accumulates(spec, size);
    for (const bool layer_major : {false, true}) {
      for (const bool release : {false, true}) {
        if (forced.layer_major && *forced.layer_major != layer_major) continue;
        if (forced.release && *forced.release != release) continue;
        if (release && (!spec.update || (several && !layer_major))) continue;
        // With one micro-batch both orders are the same; without release the order of layers
        // only takes memory.
        if (!forced.layer_major && layer_major && (!several || !release)) continue;
        for (const Offload& offload : offloads(forced, release)) {
          all.push_back({size, layer_major, release, {}, {}, offload});
        }
      }
    }
  }
  return all;
}

// How activations and gradients may be stored: these change the profile of a step.
std::vector<Storage> working_storages(const StepSpec& spec, const Forced& f) {
  std::vector<DType> activations = {DType::f32};
  if (f.allowed.bf16) activations.push_back(DType::bf16);
  if (f.allowed.fp16) activations.push_back(DType::f16);
  if (f.activation) activations = {*f.activation};
  std::vector<DType> gradients = {DType::f32};
  if (f.allowed.grad16) gradients.push_back(DType::bf16);
  if (f.gradient) gradients = {*f.gradient};
  if (!spec.update) gradients = {DType::f32};  // they are what is asked for
  std::vector<Storage> all;
  for (const DType activation : activations) {
    for (const DType gradient : gradients) all.push_back({activation, gradient});
  }
  return all;
}

// How the optimizer's state may be stored: a matter of the tensors alone.
std::vector<Storage> state_storages(const StepSpec& spec, const Forced& f, const Storage& working) {
  std::vector<Moments> moments = {Moments::f32};
  if (f.allowed.adam8) moments.push_back(Moments::coded);
  if (f.moments) moments = {*f.moments};
  std::vector<DType> averages = {DType::f32};
  if (f.allowed.ema16) averages.push_back(DType::bf16);
  if (f.ema) averages = {*f.ema};
  if (!spec.update) moments = {Moments::f32};
  if (!spec.update || !spec.ema) averages = {DType::f32};
  std::vector<Storage> all;
  for (const Moments moment : moments) {
    for (const DType average : averages) {
      all.push_back({working.activation, working.gradient, moment, average});
    }
  }
  return all;
}

// The fastest candidate for every number of bytes. One that comes later must be better.
class Front {
 public:
  void offer(const Choices& choices, const Schedule& schedule, const Estimate& e) {
    const double seconds = e.seconds * (1 + kReluctance * techniques_used_reluctantly(choices));
    Candidate offered{choices, e.bytes, e.seconds, e.own_bytes};
    const int64_t bytes = offered.total_bytes();
    auto after = made_.upper_bound(seconds);
    if (after != made_.begin() && std::prev(after)->second.total_bytes() <= bytes) return;
    while (after != made_.end() && after->second.total_bytes() >= bytes) after = made_.erase(after);
    offered.choices.schedule = schedule;
    made_[seconds] = std::move(offered);
  }

  std::vector<Candidate> take() {
    std::vector<Candidate> all;
    all.reserve(made_.size());
    for (auto& [seconds, candidate] : made_) all.push_back(std::move(candidate));
    made_.clear();
    return all;
  }

 private:
  std::map<double, Candidate> made_;  // by seconds, reluctance counted; their bytes fall
};

}  // namespace

void check_forced(const Forced& forced, const StepSpec& spec) {
  const bool several = forced.micro_batch && accumulates(spec, *forced.micro_batch);
  if (forced.micro_batch && *forced.micro_batch > spec.batch) {
    fail(Exit::usage,
         fmt::format("--micro-batch: found {}, more than --batch {}", *forced.micro_batch,
                     spec.batch),
         "a micro-batch is a part of the batch");
  }
  if (several && forced.release.value_or(false) && !forced.layer_major.value_or(true)) {
    fail(Exit::usage,
         fmt::format("--release on contradicts --order batch with --micro-batch {} of --batch {}: "
                     "a gradient is complete only after the last micro-batch",
                     *forced.micro_batch, spec.batch),
         "leave --order to the planner, or --micro-batch at the whole batch");
  }
  if (forced.release.value_or(false) && !spec.update) {
    fail(Exit::usage, "--release on contradicts the gradients that are asked for",
         "leave --release out");
  }
}

int techniques_used_reluctantly(const Choices& choices) {
  const Storage& s = choices.storage;
  const Offload& o = choices.offload;
  return o.state + o.weights + o.inputs + (s.activation != DType::f32) +
         (s.gradient != DType::f32) + (s.moments != Moments::f32) + (s.ema != DType::f32);
}

namespace {

// Every schedule of one way to carry out the step, with each way to store the state.
void offer_schedules(Front& front, const DitConfig& config, const StepSpec& spec,
                     const Forced& forced, Choices way, const CostModel& costs,
                     const Device& device) {
  const Storage working = way.storage;
  const Profile profile = profile_step(config, spec, way, costs, device, forced.keep);
  const std::vector<Storage> states = state_storages(spec, forced, working);
  const auto updating = [&](const Storage& storage) {
    return spec.update ? update_seconds(config, spec, storage, costs) : 0;
  };
  std::vector<Estimate> more;
  for (const Storage& state : states) {
    more.push_back({state_bytes(config, spec, state, way.offload) -
                        state_bytes(config, spec, working, way.offload),
                    updating(state) - updating(working)});
  }
  const auto offer = [&](const Schedule& schedule) {
    const Estimate e = estimate(profile, config, schedule);
    for (size_t i = 0; i < states.size(); ++i) {
      way.storage = states[i];
      front.offer(way, schedule,
                  {e.bytes + more[i].bytes, e.seconds + more[i].seconds, e.own_bytes});
    }
  };
  if (forced.keep) {
    offer(plain_schedule(std::vector<KeepSet>(config.depth(), *forced.keep)));
  } else {
    visit_schedules(profile, config.depth(), offer);
  }
}

}  // namespace

std::vector<Candidate> step_candidates(const DitConfig& config, const StepSpec& spec,
                                       const Forced& forced, const CostModel& costs,
                                       const Device& device) {
  check_forced(forced, spec);
  check_countable(config, spec.batch);
  Front front;
  for (const Storage& working : working_storages(spec, forced)) {
    for (Choices way : ways(spec, forced)) {
      way.storage = working;
      offer_schedules(front, config, spec, forced, std::move(way), costs, device);
    }
  }
  return front.take();
}

std::vector<TechniqueUse> techniques_in_use(const DitConfig& config, const StepSpec& spec) {
  const Choices& c = spec.choices;
  std::vector<TechniqueUse> used;
  const auto again = block_choices(c.schedule, config.depth());
  const int64_t kept = std::count(again.begin(), again.end(), BlockChoice{KeepSet::all(), 1});
  if (!c.schedule.empty() && kept < config.depth()) {
    used.push_back({"recompute",
                    fmt::format("{} of {} blocks", config.depth() - kept, config.depth()),
                    "exact"});
  }
  const std::vector<Part> parts = micro_batches(spec.batch, c.micro_batch);
  if (accumulates(spec, c.micro_batch)) {
    used.push_back({"accumulate",
                    parts.size() == 1
                        ? fmt::format("{} x {}", parts[0].count, parts[0].size)
                        : fmt::format("{} x {} + {}", parts[0].count, parts[0].size, parts[1].size),
                    "exact"});
  }
  if (c.layer_major && accumulates(spec, c.micro_batch)) {
    used.push_back({"layer-major", "on", "exact"});
  }
  if (c.release && spec.update) {
    used.push_back({"release", spec.norm_first() ? "two passes" : "one pass", "exact"});
  }
  if (c.offload.any()) {
    std::string what = c.offload.state ? "moments, average" : "";
    if (c.offload.weights) what += ", weights";
    if (c.offload.inputs) what += what.empty() ? "block inputs" : ", block inputs";
    used.push_back({"offload", what, "exact"});
  }
  const auto stored = [&](const char* name, DType type) {
    if (type == DType::f32) return;
    used.push_back({name, type == DType::f16 ? "fp16" : "bf16", "lossy"});
  };
  stored("mixed precision", c.storage.activation);
  stored("gradients", c.storage.gradient);
  if (c.storage.moments == Moments::coded) used.push_back({"moments", "8-bit", "lossy"});
  stored("average", c.storage.ema);
  return used;
}

}  // namespace ebb
