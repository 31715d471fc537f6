// The contract between ranks, kept by ranks that are threads.
#include "comm/peers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "peers_exchange.h"
#include "thread_peers.h"

namespace ebb {
namespace {

TEST(ThreadPeers, BytesArriveRightInAnyOrderOfAskingAndAreCounted) {
  for (const int n : {2, 3, 5}) {
    ThreadRanks::run(n, [](Peers& peers) {
      int64_t sent = peers.size() == 2 ? edge_sizes_exchange(peers, 3'000'000) : 0;
      for (uint64_t seed = 0; seed < 10; ++seed) sent += random_exchange(peers, seed, 40, 20'000);
      EXPECT_EQ(peers.sent_bytes(), sent);
    });
  }
}

TEST(ThreadPeers, ASendEndsOnlyWhenItIsReceived) {
  std::atomic<bool> received = false;
  ThreadRanks::run(2, [&](Peers& peers) {
    uint64_t word = peers.rank();
    if (peers.rank() == 0) {
      peers.wait(peers.send(1, 0, &word, 8));
      EXPECT_TRUE(received);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      received = true;
      peers.wait(peers.receive(0, 0, &word, 8));
      EXPECT_EQ(word, 0u);
    }
  });
}

TEST(ThreadPeers, NumbersComeToTheFirstRankWithTheFlags) {
  ThreadRanks::run(3, [](Peers& peers) {
    const double own[] = {peers.rank() + 0.5, -1};
    std::vector<double> all;
    EXPECT_EQ(peers.any(uint64_t{1} << peers.rank(), own, all), 7u);
    EXPECT_EQ(all, peers.rank() > 0 ? std::vector<double>()
                                    : (std::vector<double>{0.5, -1, 1.5, -1, 2.5, -1}));
  });
}

TEST(ThreadPeers, ARankThatEndsWithATransferOpenIsAnError) {
  uint64_t word = 0;  // lives longer than both
  std::vector<std::string> said;
  EXPECT_THROW(ThreadRanks::run(
                   2,
                   [&](Peers& peers) {
                     if (peers.rank() == 0) peers.send(1, 4, &word, 8);
                   },
                   &said),
               Error);
  EXPECT_EQ(said[0], "ranks: rank 0 had begun to send 8 bytes to rank 1 (channel 4), and ended");
}

TEST(ThreadPeers, SizesThatDisagreeAreAnErrorOfEveryRank) {
  std::vector<std::string> said;
  EXPECT_THROW(ThreadRanks::run(
                   3,
                   [](Peers& peers) {
                     std::vector<std::byte> bytes(100);
                     const int r = peers.rank();
                     peers.wait(r == 0   ? peers.send(1, 7, bytes.data(), 10)
                                : r == 1 ? peers.receive(0, 7, bytes.data(), 11)
                                         : peers.receive(0, 7, bytes.data(), 10));
                   },
                   &said),
               Error);
  for (const std::string& each : said) {
    EXPECT_EQ(each,
              "ranks: rank 1 wanted to receive 11 bytes from rank 0 (channel 7), but rank 0 "
              "sends 10 bytes");
  }
}

TEST(ThreadPeers, RanksThatWaitForEachOtherAreToldSoAtOnce) {
  std::vector<std::string> said;
  const auto ring = [](Peers& peers) {
    uint64_t word = 0;
    const int next = (peers.rank() + 1) % peers.size();
    // Both send first: with any buffering this would pass.
    peers.wait(peers.send(next, 0, &word, 8));
    peers.wait(peers.receive(next, 0, &word, 8));
  };
  EXPECT_THROW(ThreadRanks::run(2, ring, &said), Error);
  EXPECT_EQ(said[0],
            "ranks: all wait for each other; rank 0 to send 8 bytes to rank 1 (channel 0);"
            " rank 1 to send 8 bytes to rank 0 (channel 0)");
  // A rank that has ended sends nothing any more.
  EXPECT_THROW(ThreadRanks::run(2,
                                [](Peers& peers) {
                                  uint64_t word = 0;
                                  if (peers.rank() == 1) peers.wait(peers.receive(0, 0, &word, 8));
                                }),
               Error);
}

TEST(ThreadPeers, WhatARankTellsAllHear) {
  ThreadRanks::run(5, [](Peers& peers) {
    const auto text = [](int rank) { return std::string(rank * 4000, 'a') + std::to_string(rank); };
    const std::vector<std::string> all = peers.tell_all(text(peers.rank()));
    ASSERT_EQ(all.size(), 5u);
    for (int r = 0; r < 5; ++r) EXPECT_EQ(all[r], text(r));
    EXPECT_EQ(peers.any(peers.rank() % 2 == 1 ? 1u << peers.rank() : 0), 0b01010u);
    EXPECT_EQ(peers.sent_bytes(), 0);
    peers.leave();
  });
}

TEST(ThreadPeers, ARankThatGivesUpEndsTheOthers) {
  std::vector<std::string> said;
  EXPECT_THROW(ThreadRanks::run(
                   3,
                   [](Peers& peers) {
                     if (peers.rank() == 1) fail(Exit::data, "data: no more");
                     peers.any(0);
                   },
                   &said),
               Error);
  EXPECT_EQ(said[1], "data: no more");
  EXPECT_EQ(said[0], "ranks: rank 1 gave up: data: no more");
  EXPECT_EQ(said[2], said[0]);
  ThreadRanks ranks(2);
  ranks.lose(1);
  EXPECT_THROW(ranks[0].any(0), Error);
}

}  // namespace
}  // namespace ebb
