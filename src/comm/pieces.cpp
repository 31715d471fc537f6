#include "comm/pieces.h"

#include <algorithm>
#include <utility>

namespace ebb {

PeerPieces::PeerPieces(Peers& peers, int channel)
    : peers_(peers), channel_(channel), memory_(static_cast<size_t>(kPiecesBytes)) {}

// A transfer has its bytes until it is over. After a failure that is: until the other side has done
// what it was about to do, or is lost.
PeerPieces::~PeerPieces() {
  for (int64_t which = 0; which < std::ssize(open_); ++which) {
    try {
      finish(which);
    } catch (const std::exception&) {  // whoever made this one leave early has said more
    }
  }
}

void PeerPieces::finish(int64_t piece) {
  auto& open = open_[static_cast<size_t>(piece % std::ssize(open_))];
  if (open) peers_.wait(*std::exchange(open, std::nullopt));
}

void PeerPieces::hop(int from, int to, int64_t bytes, const Each& each) {
  const int64_t pieces = (bytes + kPiece - 1) / kPiece;
  const auto buffer = [&](int64_t k) { return memory_.data() + k % std::ssize(open_) * kPiece; };
  const auto open = [&](int64_t k) -> auto& {
    return open_[static_cast<size_t>(k % std::ssize(open_))];
  };
  const auto size = [&](int64_t k) { return std::min(kPiece, bytes - k * kPiece); };
  const auto expect = [&](int64_t k) {
    if (from == kNobody || k >= pieces) return;
    finish(k);
    open(k) = peers_.receive(from, channel_, buffer(k), size(k));
  };
  expect(0);
  for (int64_t k = 0; k < pieces; ++k) {
    expect(k + 1);
    finish(k);
    each(k * kPiece, buffer(k), size(k));
    if (to != kNobody) open(k) = peers_.send(to, channel_, buffer(k), size(k));
  }
  for (int64_t which = 0; which < std::ssize(open_); ++which) finish(which);
}

}  // namespace ebb
