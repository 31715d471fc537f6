#include "plan/profile.h"

#include <algorithm>

#include "base/error.h"
#include "model/optimizer.h"
#include "plan/lifetimes.h"
#include "plan/packing.h"
#include "plan/plan.h"

namespace ebb {

namespace {

// Bytes alive at each op, and across the boundary before it, of what counts.
class LiveBytes {
 public:
  LiveBytes(const Program& program, const Limits& limits, bool count_gradients)
      : at_(program.ops.size() + 1), across_(program.ops.size() + 1) {
    const std::vector<Lifetime> lives = lifetimes(program);
    const std::vector<Lifetime> held = held_lives(lives, shared_places(program, lives));
    for (size_t i = 0; i < lives.size(); ++i) {
      const Buffer& b = program.buffers[i];
      const bool counted = !b.resident && (b.purpose != Purpose::gradient || count_gradients);
      if (lives[i].empty() || !counted) continue;
      const int64_t bytes = limits.aligned(b.bytes());
      at_[held[i].begin] += bytes;
      at_[held[i].end] -= bytes;
      if (lives[i].end - lives[i].begin > 1) {
        across_[lives[i].begin + 1] += bytes;
        across_[lives[i].end] -= bytes;
      }
    }
    for (size_t i = 1; i < at_.size(); ++i) {
      at_[i] += at_[i - 1];
      across_[i] += across_[i - 1];
    }
  }

  // Alive on both sides of the boundary before `op`.
  int64_t across(int op) const { return across_[op]; }
  int64_t most(int begin, int end) const {
    return begin < end ? *std::max_element(at_.begin() + begin, at_.begin() + end) : 0;
  }

 private:
  std::vector<int64_t> at_, across_;
};

// What the ops up to each, and the buffers that these are the first to touch, take as parts of a
// plan. Residents are left out.
std::vector<int64_t> own_bytes(const Program& program) {
  std::vector<int64_t> sums = {0};
  std::vector<bool> seen(program.buffers.size());
  for (const Op& op : program.ops) {
    int64_t bytes = bookkeeping_bytes(op);
    const auto touch = [&](Buf b) {
      if (!b || seen[b.id] || program.buffer(b).resident) return;
      seen[b.id] = true;
      bytes += bookkeeping_bytes(program.buffer(b));
    };
    for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
      for (const Buf b : *list) touch(b);
    }
    touch(op.scratch);
    sums.push_back(sums.back() + bytes);
  }
  return sums;
}

// Of the residents, of a model of another depth.
int64_t resident_own_bytes(const Program& program, int64_t blocks, int64_t depth) {
  int64_t of_blocks = 0, others = 0;
  for (const Buffer& b : program.buffers) {
    if (b.resident) (b.layer.starts_with("block") ? of_blocks : others) += bookkeeping_bytes(b);
  }
  return others + of_blocks / blocks * depth;
}

// A step's marks, stage by stage. One sequence of stages for each pass, and batch by batch for each
// part of the batch; memory is looked at in the first, which is the largest.
class Stages {
 public:
  Stages(const Program& program, int64_t stages, const Machine& machine, bool count_gradients)
      : marks_(program.marks),
        stages_(stages),
        live_(program, machine.limits(), count_gradients),
        time_(program, machine),
        own_(own_bytes(program)) {
    marks_.push_back(static_cast<int>(program.ops.size()));
  }

  Stage stage(int64_t index) const {
    const int begin = marks_[index];
    const int end = marks_[index + 1];
    const int64_t before = live_.across(begin);
    Stage made{live_.most(begin, end) - before, live_.across(end) - before};
    for (size_t i = index; i + 1 < marks_.size() - extra(); i += stages_) {
      made.seconds += time_.of(marks_[i], marks_[i + 1]);
      made.own_bytes += own_bytes_of(static_cast<int64_t>(i));
    }
    return made;
  }
  int64_t own_bytes_of(int64_t index) const {
    return own_[marks_[index + 1]] - own_[marks_[index]];
  }
  int64_t across(int64_t index) const { return live_.across(marks_[index]); }
  int64_t most_before(int64_t index) const { return live_.most(0, marks_[index]); }

 private:
  // An update mark behind the whole sequences.
  size_t extra() const { return (marks_.size() - 1) % stages_ == 0 ? 0 : 1; }
  std::vector<int> marks_;
  int64_t stages_;
  LiveBytes live_;
  ProgramTime time_;
  std::vector<int64_t> own_;
};

int64_t gradient_bytes(const DitConfig& config, const Storage& storage, const Limits& limits) {
  int64_t bytes = 0;
  for (const ParamSpec& p : parameters(config)) {
    if (!p.trained()) continue;
    bytes += limits.aligned(element_count(p.shape) * dtype_bytes(storage.gradient_of(p)));
  }
  return bytes;
}

}  // namespace

int64_t state_bytes(const DitConfig& config, const StepSpec& spec, const Storage& storage,
                    const Offload& offload, const Limits& limits) {
  int64_t bytes = limits.aligned(spec.feeding.memory_bytes) +
                  (offload.any() ? limits.aligned(offload.memory_bytes) : 0);
  for (const ParamSpec& p : parameters(config)) {
    for (const StateBuffer& b : state_of(p, spec, storage)) {
      if (!offload.takes(p, b.purpose)) bytes += limits.aligned(b.bytes());
    }
  }
  return bytes;
}

double update_seconds(const DitConfig& config, const StepSpec& spec, const Storage& storage,
                      const Machine& machine) {
  double seconds = 0;
  for (const ParamSpec& p : parameters(config)) {
    if (!p.trained()) continue;
    seconds += machine.costs.seconds(update_op(p, spec, storage));
  }
  return seconds;
}

int Profile::shape_of(const BlockShape& shape) const {
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i] == shape) return static_cast<int>(i);
  }
  return 0;
}

namespace {

// Every shape of block that occurs, or the largest alone where there are many.
std::vector<BlockShape> block_shapes(const DitConfig& config) {
  constexpr size_t kMost = 4;
  std::vector<BlockShape> shapes;
  BlockShape largest = config.blocks[0];
  for (const BlockShape& shape : config.blocks) {
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    largest = {std::max(largest.heads, shape.heads), std::max(largest.mlp, shape.mlp)};
  }
  return shapes.size() <= kMost ? shapes : std::vector<BlockShape>{largest};
}

// Zeroing all gradients before a loop, and the update behind everything: a matter of the tensors.
double state_seconds(const DitConfig& config, const StepSpec& spec, const Storage& storage,
                     bool zeroing, bool update, const Machine& machine) {
  const CostModel& costs = machine.costs;
  double seconds = costs.seconds(Zero{1});
  int64_t trained = 0;
  for (const ParamSpec& p : parameters(config)) {
    if (!p.trained()) continue;
    const int64_t n = element_count(p.shape);
    ++trained;
    const DType type = storage.gradient_of(p);
    if (zeroing) seconds += costs.seconds(Zero{n, type});
    if (update) seconds += costs.seconds(SquaredNorm{n, 0, type});
  }
  if (update) seconds += update_seconds(config, spec, storage, machine);
  if (update) seconds += costs.seconds(ClipScale{0, trained, 0});
  return seconds;
}

}  // namespace

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
  sampled.blocks.assign(keep.size(), config.blocks[0]);
  StepSpec spec;
  spec.batch = micro_batch;
  spec.update = false;
  spec.choices.schedule = plain_schedule(keep);
  spec.choices.storage.activation = activation;
  const auto blocks = static_cast<int64_t>(keep.size());
  const Program program = write_step(sampled, spec, *machine.device);
  const Stages stages(program, 2 * blocks + 3, machine, true);
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

Profile profile_step(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                     const std::vector<KeepSet>& keep_options, const Machine& machine) {
  Profile p;
  const bool accumulates = micro_batch_count(spec.batch, choices.micro_batch) > 1;
  p.options = keep_options;
  p.shapes = block_shapes(config);
  const auto options = static_cast<int64_t>(p.options.size());
  const auto shapes = static_cast<int64_t>(p.shapes.size());
  // What is fetched ahead for a block is alive in the stage before it: with transfers, one more
  // block at either end gives all that are looked at neighbours like themselves.
  const int64_t ends = choices.offload.any() ? 1 : 0;
  DitConfig sampled = config;
  sampled.blocks.assign(ends, p.shapes[0]);
  std::vector<KeepSet> keep(ends, p.options.back());
  for (const BlockShape& shape : p.shapes) {
    for (const KeepSet& option : p.options) {
      sampled.blocks.push_back(shape);
      keep.push_back(option);
    }
  }
  sampled.blocks.insert(sampled.blocks.end(), ends, p.shapes[0]);
  keep.insert(keep.end(), ends, p.options.back());
  StepSpec written = spec;
  written.choices = choices;
  written.choices.schedule = plain_schedule(keep);
  const Program program = write_step(sampled, written, *machine.device);

  int64_t own = 0;
  for (const Op& op : program.ops) own += bookkeeping_bytes(op);
  for (const Buffer& b : program.buffers) own += bookkeeping_bytes(b);
  p.looking_bytes = planning_bytes(own, choices.offload.any());

  // All gradients live through a loop over whole steps; otherwise they come and go with their
  // block.
  const bool all_gradients = accumulates && !choices.layer_major;
  const auto blocks = static_cast<int64_t>(keep.size());
  const Stages stages(program, 2 * blocks + 3, machine, !all_gradients);
  const Limits limits = machine.limits();
  const int64_t state = state_bytes(config, spec, choices.storage, choices.offload, limits) +
                        (all_gradients ? gradient_bytes(config, choices.storage, limits) : 0);
  p.embed_peak = state + stages.most_before(1);
  p.start_bytes = state + stages.across(1);
  p.forward.assign(shapes, std::vector<Stage>(options));
  p.backward = p.forward;
  for (int64_t i = 0; i < options * shapes; ++i) {
    p.forward[i / options][i % options] = stages.stage(1 + ends + i);
    p.backward[i / options][i % options] = stages.stage(1 + blocks + (blocks - ends - i));
  }
  p.turn = stages.stage(1 + blocks);
  p.embed_backward = stages.stage(2 * blocks + 2);
  const bool late_update = spec.update && !choices.release;
  if (late_update) {
    const auto last = static_cast<int64_t>(program.marks.size()) - 1;
    p.update = stages.stage(last);
    p.update.seconds = 0;
    p.update.own_bytes = stages.own_bytes_of(last) / blocks * config.depth();
  }
  p.input_bytes = std::max<int64_t>(0, p.forward[0][options - 1].delta);
  p.fixed_seconds =
      stages.stage(0).seconds + p.embed_backward.seconds +
      state_seconds(config, spec, choices.storage, all_gradients, late_update, machine);
  p.fixed_own_bytes = stages.stage(0).own_bytes + p.embed_backward.own_bytes + p.update.own_bytes +
                      resident_own_bytes(program, blocks, config.depth());
  return p;
}

Estimate estimate(const Profile& p, const DitConfig& config, const Schedule& schedule) {
  // The last action that reads the block input that action i made; `count` is the embedding.
  const auto count = static_cast<int>(schedule.size());
  std::vector<int> last_reader(count + 1, -1);
  std::vector<int> maker(config.depth() + 1, count);
  std::vector<KeepSet> kept(config.depth());
  for (int i = 0; i < count; ++i) {
    const Action& a = schedule[i];
    const int64_t read = a.kind == Action::Kind::turn ? config.depth() : a.block;
    last_reader[maker[read]] = i;
    if (a.kind == Action::Kind::forward) maker[a.block + 1] = i;
  }
  const auto option_of = [&](const KeepSet& keep) {
    const auto found = std::find(p.options.begin(), p.options.end(), keep);
    if (found == p.options.end()) throw Bug("estimate: no profile of " + keep.recomputed());
    return found - p.options.begin();
  };
  Estimate e{p.embed_peak, p.fixed_seconds, p.fixed_own_bytes};
  int64_t live = p.start_bytes;
  maker.assign(config.depth() + 1, count);
  for (int i = 0; i < count; ++i) {
    const Action& a = schedule[i];
    Stage stage = p.turn;
    if (a.kind == Action::Kind::forward) {
      stage = p.forward[p.shape_of(config.blocks[a.block])][option_of(a.keep)];
      kept[a.block] = a.keep;
      if (last_reader[maker[a.block]] == i) stage.delta -= p.input_bytes;
      maker[a.block + 1] = i;
    } else if (a.kind == Action::Kind::backward) {
      stage = p.backward[p.shape_of(config.blocks[a.block])][option_of(kept[a.block])];
    }
    e.bytes = std::max(e.bytes, live + stage.peak);
    live += stage.delta;
    e.seconds += stage.seconds;
    e.own_bytes += stage.own_bytes;
  }
  e.bytes = std::max(e.bytes, live + p.embed_backward.peak);
  live += p.embed_backward.delta;
  e.bytes = std::max(e.bytes, live + p.update.peak);
  return e;
}

}  // namespace ebb
