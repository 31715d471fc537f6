#include <algorithm>

#include "plan/stages.h"

namespace ebb {

namespace {

// What a stage waits for of other ranks.
double waited_seconds(const Program& program, int64_t stage, const Machine& machine) {
  double seconds = 0;
  for (int i = program.marks[stage]; i < program.marks[stage + 1]; ++i) {
    const auto* exchange = std::get_if<Exchange>(&program.ops[i].params);
    if (exchange == nullptr || exchange->sends() || exchange->begins()) continue;
    seconds += machine.link.seconds(exchange->bytes());
  }
  return seconds;
}

}  // namespace

std::vector<KeepSet> keep_options(const DitConfig& config, int64_t micro_batch, const Choices& way,
                                  const Machine& machine, int parts) {
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
  spec.place.tensor = parts;
  spec.place.rank = parts - 1;
  spec.update = parts > 1;  // ranks are only written with one
  spec.choices.schedule = plain_schedule(keep);
  spec.choices.storage.activation = way.storage.activation;
  spec.choices.cut_tokens = way.cut_tokens;
  const auto blocks = static_cast<int64_t>(keep.size());
  const Program program = write_step(sampled, spec, *machine.device);
  const Stages stages(program, 2 * blocks + 3, false, machine, [](const Buffer&) { return true; });
  const auto forward = [&](int64_t i) { return stages.stage(1 + i); };
  const auto backward_seconds = [&](int64_t i) {
    const int64_t stage = 1 + blocks + (blocks - i);
    return stages.stage(stage).seconds + waited_seconds(program, stage, machine);
  };
  struct SlotCost {
    Slot slot;
    double bytes, seconds;
  };
  std::vector<SlotCost> order;
  for (int64_t i = 1; i < blocks; ++i) {
    order.push_back({slots[i - 1], static_cast<double>(forward(0).delta - forward(i).delta),
                     backward_seconds(i) - backward_seconds(0)});
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
