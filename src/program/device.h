// The seam to what computes and holds bytes: a device gives memory in pieces and runs ops on places
// in it. The CPU is one (kernels/cpu); another is another folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/op.h"

namespace ebb {

// Bytes of a device's memory: from `offset` on in one of its pieces.
struct Place {
  int32_t piece = 0;
  int64_t offset = 0;
  bool operator==(const Place&) const = default;
};

// What a device asks of whoever places buffers in its memory.
struct Limits {
  int64_t alignment = 64;                                         // of every buffer, a power of two
  int64_t piece_bytes = std::numeric_limits<int64_t>::max() / 2;  // of the largest piece; no buffer
                                                                  // lies across two
  bool operator==(const Limits&) const = default;

  int64_t aligned(int64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }
  // The first place from `offset` on where so many bytes lie within one piece.
  int64_t within_a_piece(int64_t offset, int64_t bytes) const {
    if (piece_bytes == Limits{}.piece_bytes) return offset;  // all that there is, one piece
    const int64_t left = piece_bytes - offset % piece_bytes;
    return bytes <= left ? offset : offset + left;
  }
  Place place(int64_t offset) const {
    return {static_cast<int32_t>(offset / piece_bytes), offset % piece_bytes};
  }
};

// Memory that a device has given. Reading and writing by the host waits for the ops before it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void read(void* to, Place from, int64_t bytes) const = 0;
  virtual void write(Place to, const void* from, int64_t bytes) = 0;
  virtual void move(Place to, Place from, int64_t bytes) = 0;  // they may overlap
  // Where the host reaches a piece by itself; null: only through read, write and move.
  virtual std::byte* host(int32_t piece) const = 0;
};

// What an op works on, in the order that its comment names its buffers.
struct Operands {
  std::span<const Place> reads, writes, updates;
  Place scratch;
  int64_t scratch_bytes = 0;
  const Scalars* scalars = nullptr;
  int64_t iteration = 0;  // of the loop that the op stands in
};

struct OpTiming {
  OpParams params;
  double seconds;
};

class Device {
 public:
  virtual ~Device() = default;

  // What times depend on: the hardware, the kernels, the threads.
  virtual std::string identity() const = 0;
  // What plans depend on besides the threads: of the same words, they are the same.
  virtual std::string kernels() const = 0;
  virtual int threads() const = 0;
  virtual Limits limits() const { return {}; }

  // Columns that its products take together: a layer of any other width costs as much as one of the
  // next multiple.
  virtual int64_t panel() const { return 1; }

  // Scratch that a kernel needs; asked for while the program is written.
  virtual int64_t scratch_bytes(const OpParams& params) const = 0;

  // So many bytes of zeros, in pieces of limits().piece_bytes and a last one of what is left. Fails
  // with Exit::budget.
  virtual std::unique_ptr<DeviceMemory> take(int64_t bytes) const = 0;

  // Begins an op; ops are carried out in the order in which they were begun. wait() returns when
  // all are done.
  virtual void run(const OpParams& params, const Operands& operands,
                   DeviceMemory& memory) const = 0;
  virtual void wait() const {}

  // How long ops take: every kind of op, over the sizes that matter. measure() takes seconds, and
  // as much memory as the largest of them needs.
  virtual std::vector<OpParams> measured_shapes() const = 0;
  virtual std::vector<OpTiming> measure() const = 0;
};

}  // namespace ebb
