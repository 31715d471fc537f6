#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>

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
        all.push_back({size, layer_major, release, {}});
      }
    }
  }
  return all;
}

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

std::vector<Candidate> step_candidates(const DitConfig& config, const StepSpec& spec,
                                       const Forced& forced, const CostModel& costs,
                                       const Device& device) {
  check_forced(forced, spec);
  std::vector<Candidate> all;
  for (const Choices& way : ways(spec, forced)) {
    const Profile profile = profile_step(config, spec, way, costs, device, forced.keep);
    std::vector<Schedule> found = forced.keep
                                      ? std::vector<Schedule>{plain_schedule(
                                            std::vector<KeepSet>(config.depth(), *forced.keep))}
                                      : schedules(profile, config.depth());
    for (Schedule& schedule : found) {
      const Estimate e = estimate(profile, config, schedule);
      Choices choices = way;
      choices.schedule = std::move(schedule);
      all.push_back({std::move(choices), e.bytes, e.seconds});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.seconds, a.bytes) < std::pair(b.seconds, b.bytes);
  });
  std::vector<Candidate> front;
  for (Candidate& candidate : all) {
    const bool smaller = front.empty() || candidate.bytes < front.back().bytes;
    if (smaller) front.push_back(std::move(candidate));
  }
  return front;
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
    used.push_back({"release", spec.clip > 0 ? "two passes" : "one pass", "exact"});
  }
  return used;
}

}  // namespace ebb
