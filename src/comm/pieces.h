// Something of any size on its way between ranks, through buffers of a fixed one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/peers.h"

namespace ebb {

// Of a hop's bytes, all pieces but the last; a multiple of every block that state is stored in.
inline constexpr int64_t kPiece = 256 << 10;
// What it takes: one piece travels while the host works on another.
inline constexpr int64_t kPiecesBytes = 2 * kPiece;

class PeerPieces {
 public:
  PeerPieces(Peers& peers, int channel);
  ~PeerPieces();
  PeerPieces(const PeerPieces&) = delete;
  PeerPieces& operator=(const PeerPieces&) = delete;

  // each(offset, bytes, count) for one piece after the other: puts those bytes in where this rank
  // is the first, and takes them out where they came from another. It must not meet other ranks.
  using Each = std::function<void(int64_t offset, std::byte* bytes, int64_t count)>;

  // Bytes go from one rank to another. Both have the same idea of their number. Sending returns
  // when the other has taken them.
  void send(int to, int64_t bytes, const Each& each) { hop(kNobody, to, bytes, each); }
  void receive(int from, int64_t bytes, const Each& each) { hop(from, kNobody, bytes, each); }

 private:
  static constexpr int kNobody = -1;
  void hop(int from, int to, int64_t bytes, const Each& each);
  void finish(int64_t piece);  // what its buffer is open for

  Peers& peers_;
  const int channel_;
  std::vector<std::byte> memory_;
  std::array<std::optional<Peers::Ticket>, 2> open_;  // a transfer of each buffer
};

}  // namespace ebb
