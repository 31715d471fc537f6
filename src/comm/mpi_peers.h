// Ranks that are processes, over MPI.
#pragma once

#include "comm/liveness.h"
#include "comm/mpi_calls.h"
#include "comm/mpi_worker.h"
#include "comm/peers.h"

namespace ebb {

class MpiPeers final : public Peers {
 public:
  // Collective. Starts MPI, and the watch over all ranks. Fails with Exit::peer.
  MpiPeers(const EbbMpi& mpi, const PeerOptions& options);

  void wait(Ticket ticket) override { worker_.wait(ticket); }
  void meet(Ticket ticket) override { worker_.meet(ticket); }
  void leave() override;
  void abandon(const std::string& why) override;

 private:
  Ticket begin(const PeerMessage& message) override { return worker_.begin(message); }

  std::string name_;  // of this rank's process
  const std::chrono::milliseconds timeout_;
  MpiWorker worker_;
  Liveness liveness_;  // ends first: it calls the worker
};

}  // namespace ebb
