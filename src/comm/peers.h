// The processes of a run, ranks 0 to n-1, which were started together. Bytes go from one rank to
// another; nothing is added up on the way. Knows no MPI: comm/launcher.h opens one that does, and
// tests/thread_peers.h has ranks that are threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "program/peer_lane.h"

namespace ebb {

// One side of a message, as those who carry it out see it.
struct PeerMessage {
  bool sends = false;
  int peer = 0, channel = 0;
  std::byte* bytes = nullptr;  // read only, of a send
  int64_t n = 0;
};
std::string described(const PeerMessage& message);  // "to send 8 bytes to rank 1 (channel 3)"

// Contract. One thread of a rank asks.
// - Messages of one (from, to, channel) are matched in the order in which each side begins them;
//   different channels, pairs and directions do not wait for each other.
// - A send completes only after the receiver has begun to take it: nothing is buffered, so what
//   finishes here finishes under any buffering.
// - The bytes belong to the transfer from send() or receive() until its wait() returns or throws. A
//   rank that cannot go on while transfers are open calls abandon() before it lets their bytes go.
// - Both sides say how many bytes there are. If they do not agree, every rank's wait() throws.
// - Once a rank is lost - it ended, or has been silent for the time-out - every wait(), tell_all()
//   and any() of every other rank throws Exit::peer and names it. Nothing more can be sent then.
class Peers : public PeerLane {
 public:
  ~Peers() override = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Channels are numbers from 0 to kChannels-1. A rank does not send to itself.
  static constexpr int kChannels = 16'000;
  static constexpr int kControl = kChannels;  // of tell_all() and any()
  Ticket send(int to, int channel, const void* bytes, int64_t n) final;
  Ticket receive(int from, int channel, void* bytes, int64_t n) final;

  // What send() was asked to send so far; tell_all() and any() are not counted.
  int64_t sent_bytes() const { return sent_bytes_; }

  // Collective: every rank calls it, in the same order among tell_all() and any(). They may overlap
  // with messages. The texts of all ranks, by rank; each has at most kTextBytes.
  static constexpr int64_t kTextBytes = 16'384;
  std::vector<std::string> tell_all(const std::string& text);
  // Collective: the flags that any rank has set, the same on every rank.
  uint64_t any(uint64_t flags);
  // The same messages with some numbers of each rank in them, as many on all: rank 0 has those of
  // all ranks in `all` afterwards, by rank.
  uint64_t any(uint64_t flags, std::span<const double> own, std::vector<double>& all);

  // Collective, the last call: the orderly end. Every transfer has been waited for. Throws
  // Exit::peer if a rank is lost meanwhile.
  virtual void leave() = 0;

  // The end of a rank that cannot go on: tells the others why, if they do not know of a loss
  // already, and gives all ranks half a second to say what they have to say, since launchers kill
  // whoever is left when the first process ends. MPI is not shut down, for that would wait for the
  // lost: the process has to end with _exit(), without exit handlers or MPI's own, and this stays
  // where it is until then.
  virtual void abandon(const std::string& why) = 0;

 protected:
  Peers() = default;
  void set_place(int rank, int size);

  virtual Ticket begin(const PeerMessage& message) = 0;

 private:
  void send_now(int to, const void* bytes, int64_t n);
  void receive_now(int from, void* bytes, int64_t n);
  void send_text(int to, const std::string& text);
  std::string receive_text(int from, int64_t most);

  int rank_ = 0, size_ = 1;
  int64_t sent_bytes_ = 0;
};

struct PeerOptions {
  // A rank that has not been heard of for so long is lost, and so is a run whose ranks have all
  // been waiting for each other for so long.
  std::chrono::milliseconds timeout{60'000};
  // A rank that computes notices a loss only when it next waits for somebody. If this process is
  // still there so long after the loss, `overdue` is called with it, by another thread, once: it
  // may end the process.
  std::chrono::milliseconds grace{5'000};
  std::function<void(const std::string& what)> overdue = {};
  bool one_host = false;  // has all ranks, for certain
};

}  // namespace ebb
