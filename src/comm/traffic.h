// Messages cut into pieces and moved by MPI's calls. All of it runs on the thread that MPI belongs
// to.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "comm/mpi_calls.h"
#include "comm/peers.h"

namespace ebb {

// What travels of a message: a head with its size, which for a small message has the bytes too;
// then pieces. The head lets the receiver notice that the sides do not agree before it is too late.
//
// All sends are synchronous. MPI sends a piece so small at once, and with a larger one asks the
// receiver first: over a network that question and its answer queue behind whatever goes the same
// way, and traffic in both directions takes turns (decision 022). So that MPI need not keep what
// nobody receives yet, pieces wait until the head was received: then their receives are there.
// Answers queue behind the pieces that go their way, and both ways go on side by side if as much is
// in flight on each: so the pieces in flight are counted for a rank and not for a message.
inline constexpr int64_t kPieceBytes = 60 << 10;
inline constexpr int64_t kSmallBytes = 4080;
inline constexpr int kPiecesAtOnce = 16;  // to one rank, and of one message that is received
// Ranks of one host have no network to queue for: there MPI copies larger pieces from one process's
// memory to the other's at once, and small ones twice, in and out of memory that both see.
inline constexpr int64_t kHostPieceBytes = 1 << 20;
inline constexpr int kHostPiecesAtOnce = 4;
inline constexpr int kMessagesAtOnce = 4;  // of one stream: each has a head, here and in MPI

class Traffic {
 public:
  Traffic(const EbbMpi& mpi, bool one_host)
      : mpi_(mpi),
        piece_bytes_(one_host ? kHostPieceBytes : kPieceBytes),
        pieces_at_once_(one_host ? kHostPiecesAtOnce : kPiecesAtOnce) {}

  void begin(Peers::Ticket ticket, const PeerMessage& message);
  // Starts what can start, lets MPI work, and adds what the other side has begun too to `met`, and
  // what is complete to `done`. Whether anything moved. Throws Exit::peer: MPI failed, or two ranks
  // do not agree about a message.
  bool work(std::vector<Peers::Ticket>& met, std::vector<Peers::Ticket>& done);
  bool idle() const { return transfers_.empty(); }

 private:
  struct Head {
    int64_t bytes;  // of the whole message
    std::array<std::byte, kSmallBytes> small;
  };
  struct Transfer {
    Peers::Ticket ticket;
    PeerMessage message;
    std::unique_ptr<Head> head;
    int64_t begun = 0;  // bytes that pieces were started for
    int started = 0;    // messages of MPI in flight, the head included
    bool head_done = false;
    std::string wrong;  // with a piece: known before the head came, which can say more
    int64_t piece_total() const { return message.n > kSmallBytes ? message.n : 0; }
    bool all_begun() const { return head != nullptr && begun == piece_total(); }
  };
  using Place = std::list<Transfer>::iterator;
  struct Part {  // what a slot of MPI's is busy with
    Place transfer;
    int64_t bytes = -1;  // of a piece; -1: the head
  };
  // Messages of one direction, pair and channel start in order: pieces have no other name.
  using StreamName = std::tuple<bool, int, int>;
  struct Stream {
    std::deque<Place> waiting;  // not begun in full; of these only the first may have begun
    int begun = 0;              // in full, and not complete
  };
  static StreamName stream_of(const PeerMessage& message) {
    return {message.sends, message.peer, message.channel};
  }

  bool start_more(bool sends);
  bool start_heads(Stream& stream);
  bool start_first(Stream& stream);
  void start_head(Place transfer);
  bool may_start_piece(const Transfer& transfer) const;
  void start_piece(Place transfer);
  int64_t start(Place transfer, int tag, std::byte* bytes, int64_t n);
  void finish_part(const EbbMpiDone& done);
  void finish(Place transfer);
  void check_head(Transfer& transfer, int64_t came);
  [[noreturn]] void mpi_failed(const std::string& doing) const;

  const EbbMpi& mpi_;
  const int64_t piece_bytes_;
  const int pieces_at_once_;
  std::list<Transfer> transfers_;
  std::map<StreamName, Stream> streams_;
  std::map<int, int> pieces_to_;  // each rank, in flight
  std::vector<Part> parts_;       // by slot
  std::vector<EbbMpiDone> done_;
  std::vector<std::unique_ptr<Head>> free_heads_;
};

}  // namespace ebb
