// What each stage of a step takes in bytes and time, found by writing a step in which every block
// goes another way: one for each shape of block that the model has. Blocks of a shape are alike, so
// these programs speak for every schedule.
#pragma once

#include <vector>

#include "model/step.h"
#include "plan/machine.h"

namespace ebb {

struct Stage {
  int64_t peak = 0;   // most bytes alive within it, above those alive when it begins
  int64_t delta = 0;  // bytes alive when it ends, above the same
  double seconds = 0;
  int64_t own_bytes = 0;  // of its ops and buffers as parts of a plan
};

struct Profile {
  std::vector<KeepSet> options;  // from everything to nothing
  // What a block of one shape takes, by option.
  struct OfShape {
    std::vector<Stage> forward, backward;
  };
  std::vector<OfShape> shapes;
  std::vector<int> shape_at;  // by block: its shape
  Stage turn, embed_backward, update;
  int64_t start_bytes = 0;  // alive when the first block begins: residents, the batch, its tokens
  int64_t embed_peak = 0;   // most bytes alive before that
  // Alive behind the first backward of all, above its delta: what it stores, where any other has
  // had something of the block before it stored meanwhile.
  int64_t first_stored = 0;
  int64_t input_bytes = 0;   // of one block's input
  double fixed_seconds = 0;  // of all that does not depend on the schedule
  int64_t fixed_own_bytes = 0;
  int64_t looking_bytes = 0;  // that finding all this out took

  const OfShape& at(int64_t block) const { return shapes[shape_at[block]]; }
  bool even() const { return shapes.size() == 1; }
};

// Keep-sets worth having, from everything to nothing; each drops what is cheapest a byte, as a
// written step with micro-batches of this size shows. Of ranks with parts of blocks the last one's,
// with what it waits for.
std::vector<KeepSet> keep_options(const DitConfig& config, int64_t micro_batch, const Choices& way,
                                  const Machine& machine, int parts = 1);

// `choices` without a schedule says in which way the step is carried out.
Profile profile_step(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                     const std::vector<KeepSet>& keep_options, const Machine& machine);

// What the state takes: residents, in bytes, and the seconds that go into updating it. Where ranks
// share the state, of the one that has most of it.
int64_t state_bytes(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                    const Limits& limits);
double update_seconds(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                      const Machine& machine);

// What a schedule comes to: the bytes of the arena, if packing leaves no gap, those of the plan
// itself, and the time.
struct Estimate {
  int64_t bytes = 0;
  double seconds = 0;
  int64_t own_bytes = 0;
};
Estimate estimate(const Profile& profile, const DitConfig& config, const Schedule& schedule);

}  // namespace ebb
