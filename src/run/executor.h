// Runs a plan's program in an arena.
#pragma once

#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "program/op.h"
#include "run/disk_store.h"

namespace ebb {

// What happened at one op, as run.
struct TimelinePoint {
  int op;
  int64_t live_bytes;  // residents included
  double seconds;      // over all times round its loop
};

class Executor {
 public:
  enum class Mode {
    normal,
    timed,         // records the timeline
    debug_memory,  // proves each op's declarations while it runs; slow, for small programs
  };

  // All must outlive it. The arena holds at least plan.bytes, the disk plan.disk_bytes, if any.
  Executor(const Plan& plan, const Device& device, Memory memory, Mode mode = Mode::normal);

  void run(const Scalars& scalars);

  // A buffer's place, for the host: inputs before a run, outputs after it, residents at any time
  // between runs.
  template <typename T = float>
  T* host(std::string_view name) const {
    return reinterpret_cast<T*>(place(plan_.program.at(name)));
  }

  // The end of the highest buffer (with its alignment) that any op was given so far: the measured
  // peak of the arena.
  int64_t peak_bytes() const { return peak_bytes_; }
  const std::vector<TimelinePoint>& timeline() const { return timeline_; }

 private:
  struct Bound {  // an op with its places
    std::vector<const std::byte*> reads;
    std::vector<std::byte*> writes, updates;
    std::span<std::byte> scratch;
    int64_t end = 0;
    bool moves = false;  // some of the places move on each time round the loop
  };

  std::byte* place(Buf b) const { return arena_ + plan_.offsets[b.id]; }
  std::byte* place(Buf b, int64_t iteration) const {
    return place(b) + iteration * plan_.program.buffer(b).view.stride;
  }
  void bind();
  void note_live_bytes();
  void note_host_owned();
  void run_ops(int begin, int end, int64_t iteration, const Scalars& scalars);
  void run_op(int index, int64_t iteration, const Scalars& scalars);
  void call(int index, int64_t iteration, const Scalars& scalars);
  void run_transfer(const Transfer& transfer, const Op& op);
  void run_op_checked(int index, int64_t iteration, const Scalars& scalars);
  void move_on(int index, int64_t iteration);
  void poison(int buffer);
  bool born_at(int buffer, int index, int64_t iteration) const;

  const Plan& plan_;
  const Device& device_;
  std::byte* arena_;
  DiskStore* disk_;
  Mode mode_;
  std::vector<Bound> bound_;
  std::vector<DiskStore::Ticket> tickets_;  // by buffer in memory: of its last transfer
  int64_t peak_bytes_ = 0;
  std::vector<int64_t> live_bytes_;  // at each op; for the timeline
  std::vector<bool> host_owned_;     // by buffer: no op touches it, other threads may
  std::vector<TimelinePoint> timeline_;
};

}  // namespace ebb
