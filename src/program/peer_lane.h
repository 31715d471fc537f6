// What other ranks are to a program: bytes go to one or come from one, beside the ops.
#pragma once

#include <cstdint>

namespace ebb {

// Messages of one (from, to, channel) are matched in the order in which each side begins them. A
// send may wait for its receive: nothing is buffered. One thread asks.
class PeerLane {
 public:
  virtual ~PeerLane() = default;

  // The bytes are the transfer's until wait() returns, which fails as the transfer did.
  using Ticket = int64_t;
  virtual Ticket send(int to, int channel, const void* bytes, int64_t n) = 0;
  virtual Ticket receive(int from, int channel, void* bytes, int64_t n) = 0;
  virtual void wait(Ticket ticket) = 0;
  // Returns when the other side has begun the transfer too, which may be as late as its end: what
  // wait() waits for after that is the bytes' own way. Fails as wait() does.
  virtual void meet(Ticket ticket) = 0;
};

}  // namespace ebb
