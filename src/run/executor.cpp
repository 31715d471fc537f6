#include "run/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "plan/packing.h"

namespace ebb {

namespace {

constexpr int kPoison = 0xFF;  // NaN as f32 and f64, -1 as i32

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Executor::Executor(const Plan& plan, const Device& device, std::byte* arena, Mode mode)
    : plan_(plan), device_(device), arena_(arena), mode_(mode) {
  for (const Op& op : plan.program.ops) {
    Bound bound;
    const auto note_end = [&](Buf b) {
      bound.end = std::max(bound.end, plan.offsets[b.id] + aligned(plan.program.buffer(b).bytes()));
    };
    for (const Buf b : op.reads) {
      bound.reads.push_back(place(b));
      note_end(b);
    }
    for (const Buf b : op.writes) {
      bound.writes.push_back(place(b));
      note_end(b);
    }
    for (const Buf b : op.updates) {
      bound.updates.push_back(place(b));
      note_end(b);
    }
    if (op.scratch) {
      bound.scratch = {place(op.scratch),
                       static_cast<size_t>(plan.program.buffer(op.scratch).bytes())};
      note_end(op.scratch);
    }
    bound_.push_back(std::move(bound));
  }
  if (mode == Mode::timed) note_live_bytes();
  if (mode == Mode::debug_memory) note_host_owned();
}

void Executor::note_live_bytes() {
  live_bytes_.assign(plan_.program.ops.size() + 1, 0);
  for (size_t b = 0; b < plan_.lives.size(); ++b) {
    if (plan_.lives[b].empty()) continue;
    live_bytes_[plan_.lives[b].begin] += plan_.program.buffers[b].bytes();
    live_bytes_[plan_.lives[b].end] -= plan_.program.buffers[b].bytes();
  }
  for (size_t i = 1; i < live_bytes_.size(); ++i) live_bytes_[i] += live_bytes_[i - 1];
  timeline_.reserve(plan_.program.ops.size());
}

void Executor::note_host_owned() {
  host_owned_.assign(plan_.program.buffers.size(), false);
  for (size_t b = 0; b < plan_.program.buffers.size(); ++b) {
    host_owned_[b] = plan_.program.buffers[b].resident;
  }
  for (const Op& op : plan_.program.ops) {
    for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
      for (const Buf b : *list) host_owned_[b.id] = false;
    }
  }
}

void Executor::run(const Scalars& scalars) {
  const int count = static_cast<int>(plan_.program.ops.size());
  if (mode_ == Mode::normal) {
    for (int i = 0; i < count; ++i) run_op(i, scalars);
    return;
  }
  if (mode_ == Mode::debug_memory) {
    for (int i = 0; i < count; ++i) run_op_checked(i, scalars);
    return;
  }
  timeline_.clear();
  for (int i = 0; i < count; ++i) {
    const double start = now();
    run_op(i, scalars);
    timeline_.push_back({i, live_bytes_[i], now() - start});
  }
}

void Executor::run_op(int index, const Scalars& scalars) {
  const Bound& bound = bound_[index];
  Call call;
  call.reads = bound.reads;
  call.writes = bound.writes;
  call.updates = bound.updates;
  call.scratch = bound.scratch;
  call.scalars = &scalars;
  peak_bytes_ = std::max(peak_bytes_, bound.end);
  device_.run(plan_.program.ops[index].params, call);
}

void Executor::poison(int buffer) {
  std::memset(arena_ + plan_.offsets[buffer], kPoison, plan_.program.buffers[buffer].bytes());
}

// Everything that the op did not declare is poisoned while it runs: if it reads such bytes it
// computes NaN, and if it writes them the poison is gone. Declared reads must come out unchanged. A
// buffer is poisoned when it is born and again when it dies.
void Executor::run_op_checked(int index, const Scalars& scalars) {
  const Op& op = plan_.program.ops[index];
  const auto buffers = static_cast<int>(plan_.program.buffers.size());
  const auto written = [&](int id) {
    return std::find(op.writes.begin(), op.writes.end(), Buf{id}) != op.writes.end() ||
           std::find(op.updates.begin(), op.updates.end(), Buf{id}) != op.updates.end() ||
           op.scratch.id == id;
  };
  const auto read = [&](int id) {
    return std::find(op.reads.begin(), op.reads.end(), Buf{id}) != op.reads.end();
  };
  const auto is_input = [&](int id) {
    const auto& inputs = plan_.program.inputs;
    return std::find(inputs.begin(), inputs.end(), Buf{id}) != inputs.end();
  };
  for (int id = 0; id < buffers; ++id) {
    const bool kept = plan_.program.buffers[id].resident || is_input(id);
    if (!kept && plan_.lives[id].begin == index && !plan_.lives[id].empty()) poison(id);
  }

  std::vector<uint8_t> declared(plan_.bytes, 0);
  for (int id = 0; id < buffers; ++id) {
    const bool left_alone = read(id) || written(id) || host_owned_[id];
    const int64_t bytes = plan_.program.buffers[id].bytes();
    if (left_alone) std::fill_n(declared.begin() + plan_.offsets[id], bytes, uint8_t{1});
  }
  std::vector<std::byte> before(plan_.bytes);
  for (int64_t i = 0; i < plan_.bytes; ++i) {
    if (declared[i]) continue;
    before[i] = arena_[i];
    arena_[i] = std::byte{kPoison};
  }
  for (const Buf b : op.reads) {
    std::memcpy(before.data() + plan_.offsets[b.id], place(b), plan_.program.buffer(b).bytes());
  }
  run_op(index, scalars);
  for (int id = 0; id < buffers; ++id) {
    if (!read(id) || written(id)) continue;
    const int64_t offset = plan_.offsets[id];
    require(std::memcmp(arena_ + offset, before.data() + offset,
                        plan_.program.buffers[id].bytes()) == 0,
            "debug-memory: op {} changed {}, which it only reads", op.name,
            plan_.program.buffers[id].name);
  }
  for (int64_t i = 0; i < plan_.bytes; ++i) {
    if (declared[i]) continue;
    require(arena_[i] == std::byte{kPoison}, "debug-memory: op {} wrote byte {}, not its own",
            op.name, i);
    arena_[i] = before[i];
  }
  for (int id = 0; id < buffers; ++id) {
    const bool is_output = std::find(plan_.program.outputs.begin(), plan_.program.outputs.end(),
                                     Buf{id}) != plan_.program.outputs.end();
    if (!plan_.program.buffers[id].resident && !is_output && plan_.lives[id].end == index + 1) {
      poison(id);
    }
  }
}

}  // namespace ebb
