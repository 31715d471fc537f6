#include "comm/peers.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace ebb {

std::string described(const PeerMessage& message) {
  return fmt::format("to {} {} bytes {} rank {} ({})", message.sends ? "send" : "receive",
                     message.n, message.sends ? "to" : "from", message.peer,
                     message.channel == Peers::kControl
                         ? std::string("what all ranks tell each other")
                         : fmt::format("channel {}", message.channel));
}

void Peers::set_place(int rank, int size) {
  require(size >= 1 && rank >= 0 && rank < size, "ranks: rank {} of {}", rank, size);
  rank_ = rank;
  size_ = size;
}

Peers::Ticket Peers::send(int to, int channel, const void* bytes, int64_t n) {
  require(to >= 0 && to < size_ && to != rank_, "ranks: rank {} sends to rank {}", rank_, to);
  require(channel >= 0 && channel < kChannels && n >= 0, "ranks: {} bytes on channel {}", n,
          channel);
  sent_bytes_ += n;
  return begin({true, to, channel, static_cast<std::byte*>(const_cast<void*>(bytes)), n});
}

Peers::Ticket Peers::receive(int from, int channel, void* bytes, int64_t n) {
  require(from >= 0 && from < size_ && from != rank_, "ranks: rank {} receives from rank {}", rank_,
          from);
  require(channel >= 0 && channel < kChannels && n >= 0, "ranks: {} bytes on channel {}", n,
          channel);
  return begin({false, from, channel, static_cast<std::byte*>(bytes), n});
}

void Peers::send_now(int to, const void* bytes, int64_t n) {
  wait(begin({true, to, kControl, static_cast<std::byte*>(const_cast<void*>(bytes)), n}));
}

void Peers::receive_now(int from, void* bytes, int64_t n) {
  wait(begin({false, from, kControl, static_cast<std::byte*>(bytes), n}));
}

void Peers::send_text(int to, const std::string& text) {
  const auto n = static_cast<int64_t>(text.size());
  send_now(to, &n, sizeof n);
  send_now(to, text.data(), n);
}

std::string Peers::receive_text(int from, int64_t most) {
  int64_t n = 0;
  receive_now(from, &n, sizeof n);
  require(n >= 0 && n <= most, "ranks: rank {} tells {} bytes, at most {}", from, n, most);
  std::string text(n, '\0');
  receive_now(from, text.data(), n);
  return text;
}

namespace {

// Texts as one, each after its length.
std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    const auto n = static_cast<int64_t>(text.size());
    all.append(reinterpret_cast<const char*>(&n), sizeof n);
    all += text;
  }
  return all;
}

std::vector<std::string> parted(const std::string& all, int count) {
  std::vector<std::string> texts(count);
  size_t at = 0;
  for (std::string& text : texts) {
    uint64_t n = 0;
    require(at + sizeof n <= all.size(), "ranks: a text of rank 0 ends early");
    std::memcpy(&n, all.data() + at, sizeof n);
    at += sizeof n;
    require(n <= all.size() - at, "ranks: a text of rank 0 ends early");
    text = all.substr(at, n);
    at += n;
  }
  return texts;
}

}  // namespace

// By way of rank 0: 2(n-1) messages instead of n(n-1).
std::vector<std::string> Peers::tell_all(const std::string& text) {
  require(static_cast<int64_t>(text.size()) <= kTextBytes, "ranks: a text of {} bytes, at most {}",
          text.size(), kTextBytes);
  if (rank_ != 0) {
    send_text(0, text);
    return parted(receive_text(0, size_ * (kTextBytes + 8)), size_);
  }
  std::vector<std::string> texts = {text};
  for (int r = 1; r < size_; ++r) texts.push_back(receive_text(r, kTextBytes));
  const std::string all = joined(texts);
  for (int r = 1; r < size_; ++r) send_text(r, all);
  return texts;
}

uint64_t Peers::any(uint64_t flags) {
  std::vector<double> none;
  return any(flags, {}, none);
}

uint64_t Peers::any(uint64_t flags, std::span<const double> own, std::vector<double>& all) {
  // A rank's flags, then its numbers.
  const size_t each = sizeof flags + own.size_bytes();
  std::vector<std::byte> said(rank_ == 0 ? size_ * each : each);
  std::memcpy(said.data(), &flags, sizeof flags);
  if (!own.empty()) std::memcpy(said.data() + sizeof flags, own.data(), own.size_bytes());
  if (rank_ != 0) {
    send_now(0, said.data(), static_cast<int64_t>(each));
    receive_now(0, &flags, sizeof flags);
    return flags;
  }
  const auto with_each = [&](const auto& side) {
    std::vector<Ticket> tickets;
    for (int r = 1; r < size_; ++r) tickets.push_back(begin(side(r)));
    for (const Ticket ticket : tickets) wait(ticket);
  };
  with_each([&](int r) {
    return PeerMessage{false, r, kControl, &said[r * each], static_cast<int64_t>(each)};
  });
  all.resize(size_ * own.size());
  for (int r = 0; r < size_; ++r) {
    uint64_t other = 0;
    std::memcpy(&other, &said[r * each], sizeof other);
    flags |= other;
    if (own.empty()) continue;
    std::memcpy(&all[r * own.size()], &said[r * each] + sizeof other, own.size_bytes());
  }
  with_each([&](int r) {
    auto* bytes = reinterpret_cast<std::byte*>(&flags);
    return PeerMessage{true, r, kControl, bytes, sizeof flags};
  });
  return flags;
}

}  // namespace ebb
