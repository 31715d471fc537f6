#include "run/executor.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/error.h"

namespace ebb {

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Executor::Executor(const Plan& plan, const Device& device, RunMemory& memory, Mode mode)
    : plan_(plan),
      device_(device),
      memory_(memory),
      mode_(mode),
      tickets_(plan.program.buffers.size()) {
  bind();
  if (mode == Mode::timed) note_live_bytes();
  if (mode == Mode::debug_memory) note_host_owned();
}

Buf Executor::sized(std::string_view name, size_t bytes) const {
  const Buf b = plan_.program.at(name);
  require(plan_.program.buffer(b).bytes() == static_cast<int64_t>(bytes),
          "executor: {} bytes for {}, which has {}", bytes, name, plan_.program.buffer(b).bytes());
  return b;
}

void Executor::bind() {
  const Program& program = plan_.program;
  for (const Op& op : program.ops) {
    Bound bound;
    const auto bind_all = [&](std::vector<Place>& places, const std::vector<Buf>& bufs) {
      for (const Buf b : bufs) {
        places.push_back(place(b));
        const Buf root = program.root(b);
        if (program.buffer(root).away()) continue;
        const int64_t bytes = memory_.limits().aligned(program.buffer(root).bytes());
        bound.end = std::max(bound.end, plan_.offsets[root.id] + bytes);
        bound.moves |= program.buffer(b).view.stride != 0;
      }
    };
    bind_all(bound.reads, op.reads);
    bind_all(bound.writes, op.writes);
    bind_all(bound.updates, op.updates);
    if (op.scratch) {
      std::vector<Place> scratch;
      bind_all(scratch, {op.scratch});
      bound.scratch = scratch[0];
      bound.scratch_bytes = program.buffer(op.scratch).bytes();
    }
    bound_.push_back(std::move(bound));
  }
}

void Executor::note_live_bytes() {
  live_bytes_.assign(plan_.program.ops.size() + 1, 0);
  for (size_t b = 0; b < plan_.held.size(); ++b) {
    if (plan_.held[b].empty() || plan_.program.buffers[b].away()) continue;
    live_bytes_[plan_.held[b].begin] += plan_.program.buffers[b].bytes();
    live_bytes_[plan_.held[b].end] -= plan_.program.buffers[b].bytes();
  }
  for (size_t i = 1; i < live_bytes_.size(); ++i) live_bytes_[i] += live_bytes_[i - 1];
  timeline_.reserve(plan_.program.ops.size());
}

void Executor::run(const Scalars& scalars) {
  const int count = static_cast<int>(plan_.program.ops.size());
  standstill_ = {};
  if (mode_ == Mode::timed) {
    timeline_.clear();
    for (int i = 0; i < count; ++i) timeline_.push_back({i, live_bytes_[i], 0});
  }
  feed_failure_ = nullptr;
  on_their_way_.clear();  // what a run that failed has left
  int next = 0;
  for (const Loop& loop : plan_.program.loops) {
    run_ops(next, loop.begin, 0, scalars);
    for (int64_t i = 0; i < loop.count; ++i) run_ops(loop.begin, loop.end, i, scalars);
    next = loop.end;
  }
  run_ops(next, count, 0, scalars);
  device_.wait();
}

void Executor::run_ops(int begin, int end, int64_t iteration, const Scalars& scalars) {
  for (int i = begin; i < end; ++i) {
    if (mode_ == Mode::debug_memory) {
      run_op_checked(i, iteration, scalars);
    } else if (mode_ == Mode::timed) {
      const double start = now();
      run_op(i, iteration, scalars);
      device_.wait();
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
  call(index, iteration, scalars, memory_.device());
}

void Executor::call(int index, int64_t iteration, const Scalars& scalars, DeviceMemory& memory) {
  const Bound& bound = bound_[index];
  const Op& op = plan_.program.ops[index];
  peak_bytes_ = std::max(peak_bytes_, bound.end);
  if (const auto* transfer = std::get_if<Transfer>(&op.params)) {
    run_transfer(*transfer, op);
    return;
  }
  if (const auto* exchange = std::get_if<Exchange>(&op.params)) {
    run_exchange(*exchange, op, iteration);
    return;
  }
  if (const auto* take = std::get_if<TakeSamples>(&op.params)) {
    take_samples(*take, index, iteration, memory);
    return;
  }
  Operands made;
  made.reads = bound.reads;
  made.writes = bound.writes;
  made.updates = bound.updates;
  made.scratch = bound.scratch;
  made.scratch_bytes = bound.scratch_bytes;
  made.scalars = &scalars;
  made.iteration = iteration;
  device_.run(op.params, made, memory);
  if (feed_failure_ && std::holds_alternative<ReadSamples>(op.params)) spoil(index, memory);
}

void Executor::take_samples(const TakeSamples& take, int index, int64_t iteration,
                            DeviceMemory& memory) {
  require(feed_ != nullptr, "executor: the program takes samples, and nobody feeds it");
  const std::vector<Place>& to = bound_[index].writes;
  try {
    if (feed_failure_) return spoil(index, memory);
    feed_->take(memory, to[0], take.labelled ? &to[1] : nullptr,
                take.first_sample + iteration * take.B, take.B);
  } catch (...) {
    if (peers_ == nullptr) throw;
    feed_failure_ = std::current_exception();
    spoil(index, memory);
  }
}

// What the op writes becomes NaN. Pixels and labels have none: they become 0, and what is read of
// the pixels is spoiled in its turn.
void Executor::spoil(int index, DeviceMemory& memory) const {
  constexpr uint16_t kNan = 0x7fff;  // as fp16, and twice as fp32
  const std::vector<Buf>& writes = plan_.program.ops[index].writes;
  for (size_t i = 0; i < writes.size(); ++i) {
    const Buffer& buffer = plan_.program.buffer(writes[i]);
    std::array<uint16_t, 512> part{};
    if (buffer.type == DType::f32 || buffer.type == DType::f16) part.fill(kNan);
    const Place at = bound_[index].writes[i];
    for (int64_t done = 0, n = 0; done < buffer.bytes(); done += n) {
      n = std::min<int64_t>(buffer.bytes() - done, sizeof part);
      memory.write({at.piece, at.offset + done}, part.data(), n);
    }
  }
}

// Between its begin and its end a transfer has its memory to itself: so says the plan.
void Executor::run_transfer(const Transfer& transfer, const Op& op) {
  const auto bytes = [&](Buf b) { return plan_.program.buffer(b).bytes(); };
  Lane& lane = memory_.lane(static_cast<Home>(transfer.lane));
  DeviceMemory& memory = memory_.device();
  switch (transfer.part) {
    case Transfer::Part::fetch_begin: {
      const Buf to = op.writes[0];
      tickets_[to.id] = lane.fetch(memory, place(to), offset(op.reads[0]), bytes(to));
      return;
    }
    case Transfer::Part::store_begin: {
      const Buf from = op.reads[0];
      device_.wait();  // for what is to be stored
      tickets_[from.id] = lane.store(memory, place(from), offset(op.writes[0]), bytes(from));
      return;
    }
    case Transfer::Part::fetch_end:
      lane.wait(tickets_[op.updates[0].id]);
      return;
    case Transfer::Part::store_end:
      lane.wait(tickets_[op.reads[0].id]);
      return;
  }
}

void Executor::run_exchange(const Exchange& exchange, const Op& op, int64_t iteration) {
  require(peers_ != nullptr, "executor: {} is for another rank, and there is none", op.name);
  const Buf x = exchanged(op);
  if (!exchange.begins()) return finish_exchange(tickets_[x.id]);
  const Place at = place(x, iteration);
  std::byte* const bytes = memory_.device().host(at.piece) + at.offset;
  if (exchange.sends()) {
    device_.wait();  // for what is to be sent
    tickets_[x.id] = peers_->send(exchange.peer, exchange.channel, bytes, exchange.bytes());
  } else {
    tickets_[x.id] = peers_->receive(exchange.peer, exchange.channel, bytes, exchange.bytes());
  }
}

void Executor::finish_exchange(PeerLane::Ticket ticket) {
  const double start = now();
  peers_->meet(ticket);
  const double met = now();
  peers_->wait(ticket);
  standstill_.waiting += met - start;
  standstill_.exchanging += now() - met;
}

}  // namespace ebb
