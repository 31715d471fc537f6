// The thread that makes every call of MPI's, and the door to it: MPI libraries make no progress by
// themselves, and some do not bear calls from several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "base/error.h"
#include "comm/liveness.h"
#include "comm/mpi_calls.h"
#include "comm/peers.h"

namespace ebb {

// begin(), meet() and wait() are for the thread that asks; fail_with() and state() for any.
class MpiWorker {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts MPI, which waits for the other ranks, but no longer than `most`. Fails with Exit::peer;
  // a thread that hangs in MPI is then left behind.
  MpiWorker(const EbbMpi& mpi, bool one_host, Clock::duration most);
  // Does not shut MPI down: finish() does. A thread that hangs in MPI is left behind.
  ~MpiWorker();
  MpiWorker(const MpiWorker&) = delete;
  MpiWorker& operator=(const MpiWorker&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  Peers::Ticket begin(const PeerMessage& message);
  // Throws what fail_with() was told - if MPI itself fails, whoever watches over the ranks asks for
  // the state() and may know of which rank it was - once the thread makes no calls any more and so
  // touches no bytes, or hangs in one for a second. Past the deadline it throws as well.
  void wait(Peers::Ticket ticket) { wait(ticket, Until::complete); }
  // As PeerLane has it.
  void meet(Peers::Ticket ticket) { wait(ticket, Until::met); }
  void set_deadline(std::optional<Clock::time_point> deadline);

  // Throws if there was a failure.
  void check() const;
  // The first is what counts.
  void fail_with(const Error& error);

  // Shuts MPI down, which waits for the other ranks, but no longer than `most`.
  void finish(Clock::duration most);

  Liveness::State state() const;

  // For handlers of abort() and exit(). An MPI library that loses a rank may end the whole process
  // from within a call: the thread that makes the calls then stays here for ever, like one that
  // hangs, and the others live to say what happened. Any other thread returns at once.
  static void outlive_mpi();

 private:
  struct Shared;
  enum class Until : uint8_t { met, complete };
  void wait(Peers::Ticket ticket, Until until);
  static void run(const std::shared_ptr<Shared>& shared);
  static thread_local Shared* own;  // of the thread that calls MPI

  std::shared_ptr<Shared> shared_;
  int rank_ = 0, size_ = 1;
  std::thread thread_;
};

}  // namespace ebb
