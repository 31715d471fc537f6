// The proof of what ops declare. Everything that an op did not declare is poisoned while it runs:
// if it reads such bytes it computes NaN, and if it writes them the poison is gone. A buffer is
// poisoned when it is born. Declared reads must come out unchanged; one whose place an output takes
// is read from a copy. What is on its way between ranks others write and read meanwhile: it is not
// poisoned.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "run/executor.h"

namespace ebb {

namespace {

constexpr int kPoison = 0xFF;  // NaN as f32 and f64, -1 as i32

using Range = std::pair<int64_t, int64_t>;  // bytes of the arena, half-open

// What of [0, bytes) none of the ranges covers.
std::vector<Range> uncovered(std::vector<Range> ranges, int64_t bytes) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> left;
  int64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin > at) left.emplace_back(at, begin);
    at = std::max(at, end);
  }
  if (at < bytes) left.emplace_back(at, bytes);
  return left;
}

bool is_poison(const std::byte* bytes, int64_t count) {
  return bytes[0] == std::byte{kPoison} && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

// The device's pieces, and behind them pieces that hold copies.
class WithCopies final : public DeviceMemory {
 public:
  WithCopies(DeviceMemory& memory, int32_t pieces) : memory_(memory), pieces_(pieces) {}
  Place add(std::vector<std::byte> copy) {
    copies_.push_back(std::move(copy));
    return {pieces_ + static_cast<int32_t>(copies_.size()) - 1, 0};
  }
  std::byte* host(int32_t piece) const override {
    return piece < pieces_ ? memory_.host(piece)
                           : const_cast<std::byte*>(copies_[piece - pieces_].data());
  }
  void read(void* to, Place from, int64_t bytes) const override {
    std::memcpy(to, host(from.piece) + from.offset, bytes);
  }
  void write(Place to, const void* from, int64_t bytes) override {
    std::memcpy(host(to.piece) + to.offset, from, bytes);
  }
  void move(Place to, Place from, int64_t bytes) override {
    std::memmove(host(to.piece) + to.offset, host(from.piece) + from.offset, bytes);
  }

 private:
  DeviceMemory& memory_;
  const int32_t pieces_;
  std::vector<std::vector<std::byte>> copies_;
};

bool contains(const std::vector<Buf>& list, Buf b) {
  return std::find(list.begin(), list.end(), b) != list.end();
}

}  // namespace

void Executor::note_host_owned() {
  require(memory_.device().host(0) != nullptr, "debug-memory: the host does not reach this memory");
  host_owned_.assign(plan_.program.buffers.size(), false);
  for (size_t b = 0; b < plan_.program.buffers.size(); ++b) {
    host_owned_[b] = plan_.program.buffers[b].resident && !plan_.program.buffers[b].away();
  }
  for (const Op& op : plan_.program.ops) {
    for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
      for (const Buf b : *list) host_owned_[plan_.program.root(b).id] = false;
    }
  }
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

// A rank cannot wait where a message begins: the other may wait for this one. So what is on its way
// is left alone while ops run, and of what is sent it is proven that none of them changed it.
void Executor::run_exchange_checked(int index, int64_t iteration, const Scalars& scalars) {
  const Op& op = plan_.program.ops[index];
  const auto& exchange = std::get<Exchange>(op.params);
  const Buf x = exchanged(op);
  const auto bytes_at = [&](int64_t offset) {
    const Place at = memory_.limits().place(offset);
    const std::byte* bytes = memory_.device().host(at.piece) + at.offset;
    return std::vector<std::byte>(bytes, bytes + exchange.bytes());
  };
  if (exchange.begins()) {
    const int64_t begin = offset(x, iteration);
    on_their_way_[x.id] = {begin, begin + exchange.bytes(), {}};
    if (exchange.sends()) on_their_way_[x.id].sent = bytes_at(begin);
    return call(index, iteration, scalars, memory_.device());
  }
  call(index, iteration, scalars, memory_.device());
  const auto ended = on_their_way_.extract(x.id);
  require(!ended.empty(), "debug-memory: {} ends what was not begun", op.name);
  const OnItsWay& was = ended.mapped();
  require(was.sent.empty() || bytes_at(was.begin) == was.sent,
          "debug-memory: {} was changed while it was on its way: {}", plan_.program.buffer(x).name,
          op.name);
}

void Executor::run_op_checked(int index, int64_t iteration, const Scalars& scalars) {
  const Program& program = plan_.program;
  const Op& op = program.ops[index];
  Bound& bound = bound_[index];
  if (bound.moves) move_on(index, iteration);
  if (const auto* transfer = std::get_if<Transfer>(&op.params)) {
    call(index, iteration, scalars, memory_.device());
    if (transfer->begins()) {  // nothing is poisoned while it goes on: it ends here
      const Buf in_memory = (transfer->fetches() ? op.writes : op.reads)[0];
      memory_.lane(static_cast<Home>(transfer->lane)).wait(tickets_[in_memory.id]);
    }
    return;
  }
  if (std::holds_alternative<Exchange>(op.params)) {
    return run_exchange_checked(index, iteration, scalars);
  }
  const auto at = [&](int64_t offset) {  // a byte of the arena
    const Place place = memory_.limits().place(offset);
    return memory_.device().host(place.piece) + place.offset;
  };
  // Parts of a range that lie within one piece each.
  const auto in_pieces = [&](const Range& range, auto body) {
    const int64_t piece = memory_.limits().piece_bytes;
    for (int64_t begin = range.first; begin < range.second;) {
      const int64_t end = std::min(range.second, (begin / piece + 1) * piece);
      body(begin, end - begin);
      begin = end;
    }
  };
  const auto bytes_of = [&](int64_t offset, int64_t bytes) {
    return std::vector<std::byte>(at(offset), at(offset) + bytes);
  };

  WithCopies memory(memory_.device(), memory_.limits().place(plan_.bytes).piece + 1);
  std::vector<std::vector<std::byte>> before(op.reads.size());
  for (size_t i = 0; i < op.reads.size(); ++i) {
    const Buf b = op.reads[i];
    before[i] = bytes_of(offset(b, iteration), program.buffer(b).bytes());
    const bool place_is_taken = plan_.held[b.id].end == index && plan_.lives[b.id].end == index + 1;
    if (place_is_taken) bound.reads[i] = memory.add(before[i]);
  }
  for (int id = 0; id < static_cast<int>(program.buffers.size()); ++id) {
    const Buffer& b = program.buffers[id];
    const bool kept = b.resident || b.away() || contains(program.inputs, Buf{id});
    if (!kept && born_at(id, index, iteration)) {
      std::memset(at(plan_.offsets[id]), kPoison, b.bytes());
    }
  }

  std::vector<Range> declared;
  const auto declare = [&](int64_t begin, int64_t bytes) {
    declared.emplace_back(begin, begin + bytes);
  };
  // Other threads may be writing what is the host's, or on its way: it is not even read here.
  for (size_t id = 0; id < program.buffers.size(); ++id) {
    if (host_owned_[id]) declare(plan_.offsets[id], program.buffers[id].bytes());
  }
  for (const auto& [id, bytes] : on_their_way_) declared.emplace_back(bytes.begin, bytes.end);
  for (const auto* list : {&op.reads, &op.writes, &op.updates}) {
    for (const Buf b : *list) declare(offset(b, iteration), program.buffer(b).bytes());
  }
  if (op.scratch) declare(plan_.offsets[op.scratch.id], program.buffer(op.scratch).bytes());
  const std::vector<Range> others = uncovered(std::move(declared), plan_.bytes);
  std::vector<std::byte> kept;
  for (const Range& range : others) {
    in_pieces(range, [&](int64_t begin, int64_t bytes) {
      kept.insert(kept.end(), at(begin), at(begin) + bytes);
      std::memset(at(begin), kPoison, bytes);
    });
  }
  call(index, iteration, scalars, memory);
  device_.wait();

  for (size_t i = 0; i < op.reads.size(); ++i) {
    const Buf b = op.reads[i];
    const Place read = std::exchange(bound.reads[i], place(b, iteration));
    if (contains(op.writes, b) || contains(op.updates, b)) continue;
    const std::byte* now = memory.host(read.piece) + read.offset;
    require(std::memcmp(now, before[i].data(), before[i].size()) == 0,
            "debug-memory: op {} changed {}, which it only reads", op.name, program.buffer(b).name);
  }
  const std::byte* was = kept.data();
  for (const Range& range : others) {
    in_pieces(range, [&](int64_t begin, int64_t bytes) {
      require(is_poison(at(begin), bytes),
              "debug-memory: op {} wrote into bytes {} to {}, not its own", op.name, begin,
              begin + bytes);
      std::memcpy(at(begin), was, bytes);
      was += bytes;
    });
  }
}

}  // namespace ebb
