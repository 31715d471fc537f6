// Runs a plan's program on a device.
#pragma once

#include <exception>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "program/feed.h"
#include "program/peer_lane.h"
#include "run/run_memory.h"

namespace ebb {

// What happened at one op, as run.
struct TimelinePoint {
  int op;
  int64_t live_bytes;  // residents included
  double seconds;      // over all times round its loop
};

// For how much of a run its thread has stood still: until another rank was there for a message, and
// then until the bytes were.
struct Standstill {
  double waiting = 0, exchanging = 0;  // seconds
};

class Executor {
 public:
  enum class Mode {
    normal,
    timed,         // records the timeline
    debug_memory,  // proves each op's declarations while it runs; slow, for small programs
  };

  // All must outlive it. The memory is that of the plan's set.
  Executor(const Plan& plan, const Device& device, RunMemory& memory, Mode mode = Mode::normal);

  // Where the program's samples come from, if it takes any; it must outlive the last run.
  void take_from(Feed& feed) { feed_ = &feed; }

  // The other ranks, if the program exchanges anything with them; they must outlive the last run.
  void exchange_with(PeerLane& peers) { peers_ = &peers; }

  // Returns when all is done. What a feed, a lane or a rank fails with ends the run where it is:
  // nothing behind that op has happened. But where other ranks count on this one, its feed's
  // failure does not: samples that did not come are NaN, and so are the loss and the norm, on every
  // rank, which keeps all of them from updating anything. feed_failure() then says what it was.
  void run(const Scalars& scalars);
  const std::exception_ptr& feed_failure() const { return feed_failure_; }  // of the last run

  // A buffer's values, for the host: inputs before a run, outputs after it, residents at any time
  // between runs.
  template <typename T>
  void get(std::string_view name, std::span<T> values) const {
    memory_.read(values.data(), plan_, sized(name, values.size_bytes()), 0, values.size_bytes());
  }
  template <typename T>
  void set(std::string_view name, std::span<const T> values) {
    memory_.write(plan_, sized(name, values.size_bytes()), 0, values.data(), values.size_bytes());
  }
  template <typename T = float>
  T first(std::string_view name) const {  // of an output
    T value;
    memory_.read(&value, plan_, plan_.program.at(name), 0, sizeof value);
    return value;
  }

  // The end of the highest buffer (with its alignment) that any op was given so far: the measured
  // peak of the arena.
  int64_t peak_bytes() const { return peak_bytes_; }
  const std::vector<TimelinePoint>& timeline() const { return timeline_; }
  const Standstill& standstill() const { return standstill_; }  // of the last run
  const Plan& plan() const { return plan_; }

 private:
  struct Bound {  // an op with its places
    std::vector<Place> reads, writes, updates;
    Place scratch;
    int64_t scratch_bytes = 0;
    int64_t end = 0;
    bool moves = false;  // some of the places move on each time round the loop
  };

  static Buf exchanged(const Op& op) {
    return (!op.reads.empty() ? op.reads : !op.writes.empty() ? op.writes : op.updates)[0];
  }
  Buf sized(std::string_view name, size_t bytes) const;  // a Bug unless it has so many
  int64_t offset(Buf b, int64_t iteration = 0) const {
    return plan_.offsets[b.id] + iteration * plan_.program.buffer(b).view.stride;
  }
  Place place(Buf b, int64_t iteration = 0) const {
    return memory_.limits().place(offset(b, iteration));
  }
  void bind();
  void note_live_bytes();
  void note_host_owned();
  void run_ops(int begin, int end, int64_t iteration, const Scalars& scalars);
  void run_op(int index, int64_t iteration, const Scalars& scalars);
  void call(int index, int64_t iteration, const Scalars& scalars, DeviceMemory& memory);
  void run_transfer(const Transfer& transfer, const Op& op);
  void run_exchange(const Exchange& exchange, const Op& op, int64_t iteration);
  void take_samples(const TakeSamples& take, int index, int64_t iteration, DeviceMemory& memory);
  void spoil(int index, DeviceMemory& memory) const;
  void finish_exchange(PeerLane::Ticket ticket);
  void run_op_checked(int index, int64_t iteration, const Scalars& scalars);
  void run_exchange_checked(int index, int64_t iteration, const Scalars& scalars);
  void move_on(int index, int64_t iteration);
  bool born_at(int buffer, int index, int64_t iteration) const;

  const Plan& plan_;
  const Device& device_;
  RunMemory& memory_;
  Mode mode_;
  Feed* feed_ = nullptr;
  PeerLane* peers_ = nullptr;
  std::exception_ptr feed_failure_;
  std::vector<Bound> bound_;
  std::vector<Lane::Ticket> tickets_;  // by buffer in memory: of its last transfer
  int64_t peak_bytes_ = 0;
  std::vector<int64_t> live_bytes_;  // at each op; for the timeline
  std::vector<bool> host_owned_;     // by buffer: no op touches it, other threads may
  struct OnItsWay {                  // to another rank or from one, while ops run
    int64_t begin, end;              // bytes of the arena
    std::vector<std::byte> sent;     // what they are: of one that is sent
  };
  std::map<int32_t, OnItsWay> on_their_way_;  // by buffer; with debug_memory
  std::vector<TimelinePoint> timeline_;
  Standstill standstill_;
};

}  // namespace ebb
