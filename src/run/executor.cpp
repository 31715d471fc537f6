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

Executor::Executor(const Plan& plan, const Device& device, Memory memory, Mode mode)
    : plan_(plan),
      device_(device),
      arena_(memory.arena),
      disk_(memory.disk),
      mode_(mode),
      tickets_(plan.program.buffers.size()) {
  require(plan.disk_bytes == 0 || disk_ != nullptr, "executor: {} needs a disk", plan.program.name);
  bind();
  if (mode == Mode::timed) note_live_bytes();
  if (mode == Mode::debug_memory) note_host_owned();
}

void Executor::bind() {
  const Program& program = plan_.program;
  for (const Op& op : program.ops) {
    Bound bound;
    const auto note = [&](Buf b) {
      const Buf root = program.root(b);
      if (program.buffer(root).on_disk) return;
      bound.end =
          std::max(bound.end, plan_.offsets[root.id] + aligned(program.buffer(root).bytes()));
      bound.moves |= program.buffer(b).view.stride != 0;
    };
    for (const Buf b : op.reads) {
      bound.reads.push_back(place(b));
      note(b);
    }
    for (const Buf b : op.writes) {
      bound.writes.push_back(place(b));
      note(b);
    }
    for (const Buf b : op.updates) {
      bound.updates.push_back(place(b));
      note(b);
    }
    if (op.scratch) {
      bound.scratch = {place(op.scratch), static_cast<size_t>(program.buffer(op.scratch).bytes())};
      note(op.scratch);
    }
    bound_.push_back(std::move(bound));
  }
}

void Executor::note_live_bytes() {
  live_bytes_.assign(plan_.program.ops.size() + 1, 0);
  for (size_t b = 0; b < plan_.held.size(); ++b) {
    if (plan_.held[b].empty() || plan_.program.buffers[b].on_disk) continue;
    live_bytes_[plan_.held[b].begin] += plan_.program.buffers[b].bytes();
    live_bytes_[plan_.held[b].end] -= plan_.program.buffers[b].bytes();
  }
  for (size_t i = 1; i < live_bytes_.size(); ++i) live_bytes_[i] += live_bytes_[i - 1];
  timeline_.reserve(plan_.program.ops.size());
}

void Executor::note_host_owned() {
  host_owned_.assign(plan_.program.buffers.size(), false);
  for (size_t b = 0; b < plan_.program.buffers.size(); ++b) {
    host_owned_[b] = plan_.program.buffers[b].resident && !plan_.program.buffers[b].on_disk;
  }
  for (const Op& op : plan_.program.ops) {
    for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
      for (const Buf b : *list) host_owned_[plan_.program.root(b).id] = false;
    }
  }
}

void Executor::run(const Scalars& scalars) {
  const int count = static_cast<int>(plan_.program.ops.size());
  if (mode_ == Mode::timed) {
    timeline_.clear();
    for (int i = 0; i < count; ++i) timeline_.push_back({i, live_bytes_[i], 0});
  }
  int next = 0;
  for (const Loop& loop : plan_.program.loops) {
    run_ops(next, loop.begin, 0, scalars);
    for (int64_t i = 0; i < loop.count; ++i) run_ops(loop.begin, loop.end, i, scalars);
    next = loop.end;
  }
  run_ops(next, count, 0, scalars);
}

void Executor::run_ops(int begin, int end, int64_t iteration, const Scalars& scalars) {
  for (int i = begin; i < end; ++i) {
    if (mode_ == Mode::debug_memory) {
      run_op_checked(i, iteration, scalars);
    } else if (mode_ == Mode::timed) {
      const double start = now();
      run_op(i, iteration, scalars);
      timeline_[i].seconds += now() - start;
    } else {
      run_op(i, iteration, scalars);
    }
  }
}

void Executor::move_on(int index, int64_t iteration) {
  const Op& op = plan_.program.ops[index];
  Bound& bound = bound_[index];
  for (size_t i = 0; i < op.reads.size(); ++i) bound.reads[i] = place(op.reads[i], iteration);
  for (size_t i = 0; i < op.writes.size(); ++i) bound.writes[i] = place(op.writes[i], iteration);
  for (size_t i = 0; i < op.updates.size(); ++i) bound.updates[i] = place(op.updates[i], iteration);
}

void Executor::run_op(int index, int64_t iteration, const Scalars& scalars) {
  if (bound_[index].moves) move_on(index, iteration);
  call(index, iteration, scalars);
}

void Executor::call(int index, int64_t iteration, const Scalars& scalars) {
  const Bound& bound = bound_[index];
  const Op& op = plan_.program.ops[index];
  peak_bytes_ = std::max(peak_bytes_, bound.end);
  if (const auto* transfer = std::get_if<Transfer>(&op.params)) {
    run_transfer(*transfer, op);
    return;
  }
  Call made;
  made.reads = bound.reads;
  made.writes = bound.writes;
  made.updates = bound.updates;
  made.scratch = bound.scratch;
  made.scalars = &scalars;
  made.iteration = iteration;
  device_.run(op.params, made);
}

// Between its begin and its end a transfer has its memory to itself: so says the plan.
void Executor::run_transfer(const Transfer& transfer, const Op& op) {
  const auto bytes = [&](Buf b) { return plan_.program.buffer(b).bytes(); };
  const auto offset = [&](Buf b) { return plan_.offsets[b.id]; };
  switch (transfer.part) {
    case Transfer::Part::fetch_begin: {
      const Buf to = op.writes[0];
      tickets_[to.id] = disk_->fetch(place(to), offset(op.reads[0]), bytes(to));
      return;
    }
    case Transfer::Part::store_begin: {
      const Buf from = op.reads[0];
      tickets_[from.id] = disk_->store(place(from), offset(op.writes[0]), bytes(from));
      return;
    }
    case Transfer::Part::fetch_end:
      disk_->wait(tickets_[op.updates[0].id]);
      return;
    case Transfer::Part::store_end:
      disk_->wait(tickets_[op.reads[0].id]);
      return;
  }
}

void Executor::poison(int buffer) {
  std::memset(arena_ + plan_.offsets[buffer], kPoison, plan_.program.buffers[buffer].bytes());
}

// Its first op comes now: each time round for a buffer of the loop, the first time for any other.
bool Executor::born_at(int buffer, int index, int64_t iteration) const {
  const Lifetime& life = plan_.lives[buffer];
  if (life.empty() || life.begin != index) return false;
  if (iteration == 0) return true;
  for (const Loop& loop : plan_.program.loops) {
    if (loop.begin <= life.begin && life.end <= loop.end) return true;
  }
  return false;
}

// Everything that the op did not declare is poisoned while it runs: if it reads such bytes it
// computes NaN, and if it writes them the poison is gone. A buffer is poisoned when it is born.
// Declared reads must come out unchanged; one whose place an output takes is read from a copy.
void Executor::run_op_checked(int index, int64_t iteration, const Scalars& scalars) {
  const Program& program = plan_.program;
  const Op& op = program.ops[index];
  Bound& bound = bound_[index];
  if (bound.moves) move_on(index, iteration);
  if (const auto* transfer = std::get_if<Transfer>(&op.params)) {
    call(index, iteration, scalars);  // nothing is poisoned while it goes on: it ends here
    if (transfer->begins()) {
      disk_->wait(tickets_[(transfer->fetches() ? op.writes : op.reads)[0].id]);
    }
    return;
  }
  const auto contains = [](const std::vector<Buf>& list, Buf b) {
    return std::find(list.begin(), list.end(), b) != list.end();
  };
  std::vector<std::vector<std::byte>> copies(op.reads.size());
  for (size_t i = 0; i < op.reads.size(); ++i) {
    const int id = op.reads[i].id;
    if (plan_.held[id].end != index || plan_.lives[id].end != index + 1) continue;
    copies[i].assign(bound.reads[i], bound.reads[i] + program.buffers[id].bytes());
    bound.reads[i] = copies[i].data();
  }
  for (int id = 0; id < static_cast<int>(program.buffers.size()); ++id) {
    const Buffer& b = program.buffers[id];
    const bool kept = b.resident || b.on_disk || contains(program.inputs, Buf{id});
    if (!kept && born_at(id, index, iteration)) poison(id);
  }

  std::vector<uint8_t> declared(plan_.bytes, 0);
  const auto declare = [&](int64_t begin, int64_t bytes) {
    std::fill_n(declared.begin() + begin, bytes, uint8_t{1});
  };
  // Other threads may be writing what is the host's: it is not even read here.
  std::vector<std::byte> before(plan_.bytes);
  for (size_t id = 0; id < program.buffers.size(); ++id) {
    if (host_owned_[id]) declare(plan_.offsets[id], program.buffers[id].bytes());
  }
  for (int64_t i = 0; i < plan_.bytes; ++i) {
    if (!declared[i]) before[i] = arena_[i];
  }
  for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
    for (const Buf b : *list) declare(place(b, iteration) - arena_, program.buffer(b).bytes());
  }
  if (op.scratch) declare(plan_.offsets[op.scratch.id], program.buffer(op.scratch).bytes());
  for (int64_t i = 0; i < plan_.bytes; ++i) {
    if (!declared[i]) arena_[i] = std::byte{kPoison};
  }
  const std::vector<std::vector<std::byte>> copies_before = copies;
  call(index, iteration, scalars);

  for (size_t i = 0; i < op.reads.size(); ++i) {
    const Buf b = op.reads[i];
    if (contains(op.writes, b) || contains(op.updates, b)) continue;
    const std::byte* was = copies[i].empty() ? before.data() + (place(b, iteration) - arena_)
                                             : copies_before[i].data();
    require(std::memcmp(bound.reads[i], was, program.buffer(b).bytes()) == 0,
            "debug-memory: op {} changed {}, which it only reads", op.name, program.buffer(b).name);
    bound.reads[i] = place(b, iteration);
  }
  for (int64_t i = 0; i < plan_.bytes; ++i) {
    if (declared[i]) continue;
    require(arena_[i] == std::byte{kPoison}, "debug-memory: op {} wrote byte {}, not its own",
            op.name, i);
    arena_[i] = before[i];
  }
}

}  // namespace ebb
