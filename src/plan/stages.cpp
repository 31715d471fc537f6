#include "plan/stages.h"

#include <algorithm>

#include "plan/lifetimes.h"
#include "plan/plan.h"

namespace ebb {

LiveBytes::LiveBytes(const Program& program, const Limits& limits, const Counts& counts)
    : at_(program.ops.size() + 1), across_(program.ops.size() + 1) {
  const std::vector<Lifetime> lives = lifetimes(program);
  const std::vector<Lifetime> held = held_lives(lives, shared_places(program, lives));
  for (size_t i = 0; i < lives.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (lives[i].empty() || b.resident || !counts(b)) continue;
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

int64_t LiveBytes::most(int begin, int end) const {
  return begin < end ? *std::max_element(at_.begin() + begin, at_.begin() + end) : 0;
}

namespace {

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

}  // namespace

Stages::Stages(const Program& program, int64_t stages, bool two_passes, const Machine& machine,
               const LiveBytes::Counts& counts)
    : marks_(program.marks),
      stages_(stages),
      first_seen_(two_passes ? stages : 0),
      live_(program, machine.limits(), counts),
      time_(program, machine),
      own_(own_bytes(program)) {
  marks_.push_back(static_cast<int>(program.ops.size()));
}

Stage Stages::stage(int64_t index) const {
  const int begin = seen(index), end = seen(index + 1);
  const int64_t before = live_.across(begin);
  Stage made{live_.most(begin, end) - before, live_.across(end) - before};
  for (size_t i = index; i + 1 < marks_.size() - extra(); i += stages_) {
    made.seconds += time_.of(marks_[i], marks_[i + 1]);
    made.own_bytes += own_bytes_of(static_cast<int64_t>(i));
  }
  return made;
}

Shapes::Shapes(const DitConfig& config) {
  constexpr size_t kMost = 64;
  constexpr int64_t kGrid = 7;  // not counting what has none
  sort_in(config.blocks);
  if (all.size() <= kMost) return;
  const BlockShape most = largest(config.blocks);
  std::vector<BlockShape> rounded = config.blocks;
  const auto up = [](int64_t size, int64_t of) {
    const int64_t step = (of + kGrid - 1) / kGrid;
    return step == 0 ? 0 : std::min(of, (size + step - 1) / step * step);
  };
  for (BlockShape& shape : rounded) {
    shape = {up(shape.heads, most.heads), up(shape.mlp, most.mlp), {}};
  }
  sort_in(rounded);
}

BlockShape Shapes::largest(const std::vector<BlockShape>& blocks) {
  BlockShape most{0, 0};
  for (const BlockShape& shape : blocks) {
    most = {std::max(most.heads, shape.heads), std::max(most.mlp, shape.mlp)};
  }
  return most;
}

void Shapes::sort_in(const std::vector<BlockShape>& blocks) {
  all.clear();
  at.clear();
  for (const BlockShape& shape : blocks) {
    const auto found = std::find(all.begin(), all.end(), shape);
    at.push_back(static_cast<int>(found - all.begin()));
    if (found == all.end()) all.push_back(shape);
  }
}

}  // namespace ebb
