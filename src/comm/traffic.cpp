#include "comm/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/error.h"

namespace ebb {

namespace {

constexpr int64_t kHeadBytes = 8;  // before the bytes of a small message

// Every MPI has tags up to 32767.
int head_tag(int channel) { return 2 * channel; }
int piece_tag(int channel) { return 2 * channel + 1; }
static_assert(2 * Peers::kControl + 1 <= 32767);

}  // namespace

void Traffic::begin(Peers::Ticket ticket, const PeerMessage& message) {
  transfers_.push_back({ticket, message, nullptr, 0, 0, false, ""});
  streams_[stream_of(message)].waiting.push_back(std::prev(transfers_.end()));
}

bool Traffic::work(std::vector<Peers::Ticket>& met, std::vector<Peers::Ticket>& done) {
  // Receives first: what finds its receive there needs no memory of MPI's.
  bool moved = start_more(false);
  moved = start_more(true) || moved;
  done_.resize(parts_.size());
  const int count = mpi_.poll(mpi_.self, done_.data(), static_cast<int>(done_.size()));
  if (count < 0) mpi_failed("waiting for messages");
  for (int i = 0; i < count; ++i) {
    const Place transfer = parts_[done_[i].slot].transfer;
    const bool is_head = parts_[done_[i].slot].bytes < 0;
    if (is_head) met.push_back(transfer->ticket);  // no send ends before its receive has begun
    finish_part(done_[i]);
    if (transfer->started > 0 || !transfer->all_begun()) continue;
    done.push_back(transfer->ticket);
    finish(transfer);
  }
  return moved || count > 0;
}

bool Traffic::start_more(bool sends) {
  bool moved = false;
  for (auto& [name, stream] : streams_) {
    if (std::get<0>(name) != sends) continue;
    if (sends) moved = start_heads(stream) || moved;
    while (!stream.waiting.empty() && stream.begun < kMessagesAtOnce) {
      moved = start_first(stream) || moved;
      if (!stream.waiting.front()->all_begun()) break;
      stream.waiting.pop_front();
      ++stream.begun;
    }
  }
  return moved;
}

// Sends ask ahead: by the time that it is their turn the answer is there.
bool Traffic::start_heads(Stream& stream) {
  bool moved = false;
  int ahead = stream.begun;
  for (const Place transfer : stream.waiting) {
    if (ahead++ == kMessagesAtOnce) break;
    if (transfer->head != nullptr) continue;
    start_head(transfer);
    moved = true;
  }
  return moved;
}

// As much of the stream's first message as may be in flight.
bool Traffic::start_first(Stream& stream) {
  const Place transfer = stream.waiting.front();
  bool moved = false;
  if (transfer->head == nullptr) {
    start_head(transfer);
    moved = true;
  }
  while (!transfer->all_begun() && may_start_piece(*transfer)) {
    start_piece(transfer);
    moved = true;
  }
  return moved;
}

bool Traffic::may_start_piece(const Transfer& transfer) const {
  if (!transfer.message.sends) return transfer.started < pieces_at_once_;
  const auto sent = pieces_to_.find(transfer.message.peer);
  return transfer.head_done && (sent == pieces_to_.end() || sent->second < pieces_at_once_);
}

void Traffic::finish(Place transfer) {
  const auto at = streams_.find(stream_of(transfer->message));
  Stream& stream = at->second;
  // A small message is over with its head, perhaps before those in front of it have begun.
  const auto waiting = std::find(stream.waiting.begin(), stream.waiting.end(), transfer);
  if (waiting != stream.waiting.end()) {
    stream.waiting.erase(waiting);
  } else {
    --stream.begun;
  }
  if (stream.begun == 0 && stream.waiting.empty()) streams_.erase(at);
  free_heads_.push_back(std::move(transfer->head));
  transfers_.erase(transfer);
}

void Traffic::start_head(Place transfer) {
  if (free_heads_.empty()) free_heads_.push_back(std::make_unique<Head>());
  transfer->head = std::move(free_heads_.back());
  free_heads_.pop_back();
  Head& head = *transfer->head;
  const PeerMessage& message = transfer->message;
  int64_t n = kHeadBytes + kSmallBytes;
  if (message.sends) {
    head.bytes = message.n;
    const int64_t small = message.n - transfer->piece_total();
    if (small > 0) std::memcpy(head.small.data(), message.bytes, small);
    n = kHeadBytes + small;
  }
  const int64_t slot =
      start(transfer, head_tag(message.channel), reinterpret_cast<std::byte*>(&head), n);
  parts_[slot].bytes = -1;
}

void Traffic::start_piece(Place transfer) {
  const int64_t n = std::min(piece_bytes_, transfer->piece_total() - transfer->begun);
  const int64_t slot = start(transfer, piece_tag(transfer->message.channel),
                             transfer->message.bytes + transfer->begun, n);
  parts_[slot].bytes = n;
  transfer->begun += n;
  if (transfer->message.sends) ++pieces_to_[transfer->message.peer];
}

int64_t Traffic::start(Place transfer, int tag, std::byte* bytes, int64_t n) {
  const PeerMessage& message = transfer->message;
  const int length = static_cast<int>(n);
  const int slot = message.sends ? mpi_.send(mpi_.self, message.peer, tag, bytes, length)
                                 : mpi_.receive(mpi_.self, message.peer, tag, bytes, length);
  if (slot < 0) mpi_failed(described(message));
  if (slot >= static_cast<int>(parts_.size())) parts_.resize(slot + 1);
  parts_[slot].transfer = transfer;
  ++transfer->started;
  return slot;
}

void Traffic::finish_part(const EbbMpiDone& done) {
  const Part part = parts_[done.slot];
  Transfer& transfer = *part.transfer;
  --transfer.started;
  if (done.failure == kEbbMpiBroken) mpi_failed(described(transfer.message));
  const bool is_head = part.bytes < 0;
  if (is_head) transfer.head_done = true;
  if (transfer.message.sends) {
    if (!is_head) --pieces_to_[transfer.message.peer];
    return;
  }
  if (is_head) {
    check_head(transfer, done.bytes);
  } else if (done.failure == kEbbMpiTooLong || done.bytes != part.bytes) {
    transfer.wrong = fmt::format("a piece of {} bytes came", done.bytes);
  }
  // The head was sent before the piece, so it will come, and says more.
  if (!transfer.wrong.empty() && transfer.head_done) {
    fail(Exit::peer,
         fmt::format("ranks: wanted {}, but {}", described(transfer.message), transfer.wrong));
  }
}

void Traffic::check_head(Transfer& transfer, int64_t came) {
  const PeerMessage& message = transfer.message;
  const Head& head = *transfer.head;
  const int64_t small = message.n - transfer.piece_total();
  if (came < kHeadBytes || head.bytes != message.n || came != kHeadBytes + small) {
    fail(Exit::peer,
         fmt::format("ranks: wanted {}, but rank {} sends {} bytes", described(message),
                     message.peer, came < kHeadBytes ? 0 : head.bytes),
         "the ranks do not run the same program: this is a bug in ebb, or they are different "
         "builds");
  }
  if (small > 0) std::memcpy(message.bytes, head.small.data(), small);
}

void Traffic::mpi_failed(const std::string& doing) const {
  fail(Exit::peer,
       fmt::format("ranks: {} failed {}: {}", mpi_.library, doing, mpi_.failure(mpi_.self)));
}

}  // namespace ebb
