// Messages among all pairs of ranks, which every rank draws alike from a seed, and whose bytes say
// where they come from. For any kind of Peers.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "comm/peers.h"

namespace ebb {

struct PlannedMessage {
  int from, to, channel;
  int64_t bytes;
  uint64_t mark;  // what its bytes are made of
};

// No two parts of a message are alike, nor are two messages.
inline void fill_message(std::vector<std::byte>& bytes, uint64_t mark) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = (mark + i) * 0x9e3779b97f4a7c15u;
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, bytes.size() - i));
  }
}

// Begins this rank's ends of them, in an order of its own that keeps the order on each channel, and
// waits for them in another. Returns the bytes sent; fails with Exit::data if others came.
inline int64_t carry_out(Peers& peers, const std::vector<PlannedMessage>& messages, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + peers.rank());
  std::vector<const PlannedMessage*> own;
  for (const PlannedMessage& message : messages) {
    if (message.from == peers.rank() || message.to == peers.rank()) own.push_back(&message);
  }
  // A shuffle, after which messages of one stream change places until they are in order again.
  std::vector<const PlannedMessage*> order = own;
  std::shuffle(order.begin(), order.end(), random);
  const auto same = [](const PlannedMessage* a, const PlannedMessage* b) {
    return a->from == b->from && a->to == b->to && a->channel == b->channel;
  };
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = i + 1; j < order.size(); ++j) {
      if (same(order[i], order[j]) && order[j] < order[i]) std::swap(order[i], order[j]);
    }
  }
  int64_t sent = 0;
  std::vector<std::vector<std::byte>> memory(order.size());
  std::vector<std::pair<size_t, Peers::Ticket>> open;
  for (size_t i = 0; i < order.size(); ++i) {
    const PlannedMessage& m = *order[i];
    memory[i].resize(m.bytes);
    if (m.from == peers.rank()) {
      fill_message(memory[i], m.mark);
      sent += m.bytes;
      open.emplace_back(i, peers.send(m.to, m.channel, memory[i].data(), m.bytes));
    } else {
      open.emplace_back(i, peers.receive(m.from, m.channel, memory[i].data(), m.bytes));
    }
  }
  std::shuffle(open.begin(), open.end(), random);
  for (const auto& [i, ticket] : open) {
    peers.wait(ticket);
    std::vector<std::byte> expected(order[i]->bytes);
    fill_message(expected, order[i]->mark);
    if (memory[i] == expected) continue;
    const auto at = std::mismatch(expected.begin(), expected.end(), memory[i].begin()).first;
    fail(Exit::data,
         fmt::format("rank {}: byte {} of {} from rank {} on channel {} is wrong", peers.rank(),
                     at - expected.begin(), order[i]->bytes, order[i]->from, order[i]->channel));
  }
  return sent;
}

// `count` messages of random pairs, channels and sizes, many of them small.
inline int64_t random_exchange(Peers& peers, uint64_t seed, int count, int64_t most) {
  std::mt19937_64 random(seed);
  std::vector<PlannedMessage> messages;
  for (int i = 0; i < count; ++i) {
    const int from = static_cast<int>(random() % peers.size());
    const int to = static_cast<int>((from + 1 + random() % (peers.size() - 1)) % peers.size());
    const auto limit = static_cast<uint64_t>(random() % 2 == 0 ? most : 100);
    messages.push_back({from, to, static_cast<int>(random() % 4) * 5000,
                        static_cast<int64_t>(random() % (limit + 1)), random()});
  }
  return carry_out(peers, messages, seed);
}

// Every pair, both ways, all the sizes at which something changes; `largest` between two ranks.
inline int64_t edge_sizes_exchange(Peers& peers, int64_t largest) {
  constexpr int64_t kPiece = 60 << 10, kSmall = 4080;
  std::vector<PlannedMessage> messages;
  uint64_t mark = 99;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, kSmall, kSmall + 1, kPiece - 1, kPiece,
                              kPiece + 1, 2 * kPiece, 5 * kPiece + 3}) {
    for (int from = 0; from < peers.size(); ++from) {
      for (int to = 0; to < peers.size(); ++to) {
        if (from != to) messages.push_back({from, to, static_cast<int>(bytes % 3), bytes, ++mark});
      }
    }
  }
  messages.push_back({0, peers.size() - 1, 1, largest, 1});
  messages.push_back({peers.size() - 1, 0, 1, largest, 2});
  return carry_out(peers, messages, mark);
}

}  // namespace ebb
