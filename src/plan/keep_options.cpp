#include <algorithm>

#include "plan/stages.h"

namespace ebb {

std::vector<KeepSet> keep_options(const DitConfig& config, int64_t micro_batch, DType activation,
                                  const Machine& machine) {
  const bool normed = config.qk_norm != QkNormKind::none;
  std::vector<Slot> slots;
  std::vector<KeepSet> keep = {KeepSet::all()};
  const auto without = [&](const KeepSet& set, Slot slot) {
    const KeepSet made = set.with(slot, false);
    return !normed && slot == Slot::qkv ? made.with(Slot::normed, false) : made;
  };
  for (int i = 0; i < kBlockSlots; ++i) {
    const auto slot = static_cast<Slot>(i);
    if (slot == Slot::normed && !normed) continue;
    slots.push_back(slot);
    keep.push_back(without(KeepSet::all(), slot));
  }
  // A block for each: what it keeps less and takes longer is that one's.
  DitConfig sampled = config;
  sampled.blocks.assign(keep.size(), Shapes::largest(config.blocks));
  StepSpec spec;
  spec.batch = micro_batch;
  spec.update = false;
  spec.choices.schedule = plain_schedule(keep);
  spec.choices.storage.activation = activation;
  const auto blocks = static_cast<int64_t>(keep.size());
  const Program program = write_step(sampled, spec, *machine.device);
  const Stages stages(program, 2 * blocks + 3, false, machine, [](const Buffer&) { return true; });
  const auto forward = [&](int64_t i) { return stages.stage(1 + i); };
  const auto backward = [&](int64_t i) { return stages.stage(1 + blocks + (blocks - i)); };
  struct SlotCost {
    Slot slot;
    double bytes, seconds;
  };
  std::vector<SlotCost> order;
  for (int64_t i = 1; i < blocks; ++i) {
    order.push_back({slots[i - 1], static_cast<double>(forward(0).delta - forward(i).delta),
                     backward(i).seconds - backward(0).seconds});
  }
  // The backward pass reads every tensor of the block, so what dropping one costs does not depend
  // on the others: they are dropped in the order of their time a byte.
  std::stable_sort(order.begin(), order.end(), [](const SlotCost& a, const SlotCost& b) {
    return a.seconds * b.bytes < b.seconds * a.bytes;
  });
  std::vector<KeepSet> options = {KeepSet::all()};
  for (const SlotCost& drop : order) options.push_back(without(options.back(), drop.slot));
  return options;
}

}  // namespace ebb
