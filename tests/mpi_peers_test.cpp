// The thread that calls MPI and the watch over ranks, in one process: over an MPI of our own, which
// can be made to fail, with real connections. For the sanitizers, too.
#include "comm/mpi_peers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "base/error.h"
#include "comm/traffic.h"
#include "fake_mpi.h"
#include "peers_exchange.h"

namespace ebb {
namespace {

using namespace std::chrono_literals;

// Every rank a thread; what each of them threw, "" if nothing. A rank that fails gives up, and
// stays until all have, as the contract has it.
std::vector<std::string> on_ranks(FakeMpi& mpi, int n, std::chrono::milliseconds timeout,
                                  const std::function<void(Peers&)>& each, bool one_host = false) {
  std::vector<std::string> said(n);
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<MpiPeers>> all(n);
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      std::unique_ptr<MpiPeers>& peers = all[r];
      try {
        peers = std::make_unique<MpiPeers>(mpi[r],
                                           PeerOptions{.timeout = timeout, .one_host = one_host});
        EXPECT_EQ(peers->rank(), r);
        each(*peers);
        peers->leave();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Exit::peer);
        said[r] = error.what();
        if (peers) peers->abandon(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

// For tests that leave a thread behind, which nobody waits for: it looks at this until the process
// is gone.
FakeMpi& never_ended(int n) {
  static auto& all = *new std::vector<FakeMpi*>;  // reached until the end, so no leak
  all.push_back(new FakeMpi(n));
  return *all.back();
}

TEST(MpiPeers, BytesArriveRightInPiecesThatWereAgreedOn) {
  constexpr int kRanks = 3;
  const auto exchange = [](Peers& peers) {
    int64_t sent = edge_sizes_exchange(peers, 20'000'000);
    for (uint64_t seed = 0; seed < 10; ++seed) sent += random_exchange(peers, seed, 40, 20'000);
    EXPECT_EQ(peers.sent_bytes(), sent);
    EXPECT_EQ(peers.any(1u << peers.rank()), 7u);
    EXPECT_EQ(peers.tell_all(std::string(peers.rank() * 5000, 'x'))[2].size(), 10'000u);
  };
  for (const bool one_host : {false, true}) {
    FakeMpi mpi(kRanks);
    const auto said = on_ranks(mpi, kRanks, 60s, exchange, one_host);
    EXPECT_EQ(said, std::vector<std::string>(kRanks));
    EXPECT_EQ(mpi.largest(), one_host ? kHostPieceBytes : kPieceBytes);
  }
}

// However many sends are begun before anybody receives: what MPI keeps of them is bounded.
TEST(MpiPeers, FewMessagesAreInFlightAtATime) {
  FakeMpi mpi(2);
  const auto said = on_ranks(mpi, 2, 60s, [](Peers& peers) {
    std::vector<int> words(500);
    std::vector<Peers::Ticket> tickets;
    if (peers.rank() == 1) std::this_thread::sleep_for(100ms);
    for (int i = 0; i < 500; ++i) {
      if (peers.rank() == 0) words[i] = i;
      tickets.push_back(peers.rank() == 0 ? peers.send(1, 0, &words[i], sizeof(int))
                                          : peers.receive(0, 0, &words[i], sizeof(int)));
    }
    for (const auto ticket : tickets) peers.wait(ticket);
    for (int i = 0; i < 500; ++i) EXPECT_EQ(words[i], i);
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
  EXPECT_EQ(mpi.most_at_once(), static_cast<size_t>(kMessagesAtOnce));
}

// Small messages and large ones, of which more are begun than are in flight at a time.
TEST(MpiPeers, RanksMeetWhenBothHaveBegunAMessage) {
  for (const int64_t bytes : {int64_t{8}, 3 * kPieceBytes}) {
    FakeMpi mpi(2);
    std::atomic<bool> begun = false;
    const auto said = on_ranks(mpi, 2, 60s, [&](Peers& peers) {
      std::vector<std::byte> memory(bytes);
      std::vector<Peers::Ticket> tickets;
      if (peers.rank() == 1) std::this_thread::sleep_for(50ms);
      if (peers.rank() == 1) begun = true;
      for (int i = 0; i < 6; ++i) {
        tickets.push_back(peers.rank() == 0 ? peers.send(1, i, memory.data(), bytes)
                                            : peers.receive(0, i, memory.data(), bytes));
      }
      for (const auto ticket : tickets) {
        peers.meet(ticket);
        EXPECT_TRUE(begun);
        peers.wait(ticket);
        peers.meet(ticket);  // they have
      }
    });
    EXPECT_EQ(said, std::vector<std::string>(2));
  }
}

TEST(MpiPeers, SizesThatDisagreeAreAnErrorOfEveryRank) {
  const int64_t sizes[][2] = {{10, 11},
                              {0, 1},
                              {4080, 4081},
                              {4081, 4080},
                              {kPieceBytes, 2 * kPieceBytes},
                              {2 * kPieceBytes, kPieceBytes},
                              {kPieceBytes + 1, kPieceBytes + 2}};
  for (const auto& [sent, wanted] : sizes) {
    FakeMpi mpi(3);
    std::vector<std::vector<std::byte>> memory(3);
    const auto said = on_ranks(mpi, 3, 400ms, [&, n = sent, m = wanted](Peers& peers) {
      std::vector<std::byte>& bytes = memory[peers.rank()];
      bytes.assign(std::max(n, m) + 1, std::byte{3});
      if (peers.rank() == 0) peers.wait(peers.send(1, 9, bytes.data(), n));
      if (peers.rank() == 1) {
        const auto ticket = peers.receive(0, 9, bytes.data(), m);
        try {
          peers.wait(ticket);
        } catch (const Error&) {
          EXPECT_EQ(bytes[m], std::byte{3}) << "written past the end";
          throw;
        }
      }
      peers.any(0);
    });
    const std::string wrong =
        fmt::format("wanted to receive {} bytes from rank 0 (channel 9), but rank 0 sends {} bytes",
                    wanted, sent);
    for (const std::string& each : said) EXPECT_NE(each.find(wrong), std::string::npos) << each;
  }
}

TEST(MpiPeers, ARankThatEndsEndsTheOthersByName) {
  for (int victim = 0; victim < 3; ++victim) {
    FakeMpi mpi(3);
    std::vector<std::string> said(3);
    std::vector<std::unique_ptr<MpiPeers>> all(3);
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        all[r] = std::make_unique<MpiPeers>(mpi[r], PeerOptions{60s});
        try {
          r == victim ? all[r].reset() : void(all[r]->any(0));
        } catch (const Error& error) {
          said[r] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < 3; ++r) {
      const std::string start = fmt::format("ranks: rank {} (pid ", victim);
      if (r == victim) continue;
      EXPECT_EQ(said[r].rfind(start, 0), 0u) << said[r];
      EXPECT_NE(said[r].find("its process ended"), std::string::npos) << said[r];
    }
  }
}

TEST(MpiPeers, WhatMpiComplainsOfEveryRankHears) {
  FakeMpi mpi(3);
  const auto said = on_ranks(mpi, 3, 400ms, [&](Peers& peers) {
    peers.any(0);
    if (peers.rank() == 1) mpi.fail(1);
    peers.any(0);
  });
  for (const std::string& each : said) {
    EXPECT_NE(each.find("the fake was told to fail"), std::string::npos) << each;
    EXPECT_EQ(each.rfind("ranks: rank 1 (pid ", 0), 0u) << each;
  }
}

// A call of MPI's that never returns must not keep a survivor from ending.
TEST(MpiPeers, AHangInMpiDoesNotKeepALossBack) {
  FakeMpi& mpi = never_ended(2);
  const auto start = std::chrono::steady_clock::now();
  const auto said = on_ranks(mpi, 2, 400ms, [&](Peers& peers) {
    peers.any(0);
    if (peers.rank() == 1) fail(Exit::peer, "enough");
    mpi.hang(0, true);
    peers.any(0);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  EXPECT_NE(said[0].find("gave up: enough"), std::string::npos) << said[0];
  mpi.hang(0, false);
}

// The first and the last call of MPI's wait for the other ranks: not for ever.
TEST(MpiPeers, AnMpiThatDoesNotStartIsWaitedForNoLongerThanTheTimeOut) {
  FakeMpi& mpi = never_ended(2);
  mpi.hang(1, true);
  const auto said = on_ranks(mpi, 2, 300ms, [](Peers&) { FAIL() << "not all are there"; });
  EXPECT_NE(said[0].find("not every rank has come to the start"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("has not started within 0.3 s"), std::string::npos) << said[1];
  mpi.hang(1, false);
}

TEST(MpiPeers, AnMpiThatDoesNotEndIsWaitedForNoLongerThanTheTimeOut) {
  FakeMpi& mpi = never_ended(2);
  mpi.hang_at_end(1, true);
  const auto said = on_ranks(mpi, 2, 300ms, [](Peers& peers) { peers.any(0); });
  EXPECT_NE(said[0].find("rank 1 (pid "), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("has not ended within 0.3 s"), std::string::npos) << said[1];
  mpi.hang_at_end(1, false);
}

// It would notice by itself only when it next waits for somebody.
TEST(MpiPeers, ARankThatComputesOnAfterALossIsCalled) {
  FakeMpi mpi(2);
  std::vector<std::string> called;
  PeerOptions options{60s};
  options.grace = 100ms;
  options.overdue = [&](const std::string& what) { called.push_back(what); };
  std::vector<std::unique_ptr<MpiPeers>> all(2);
  std::thread other([&] {
    all[1] = std::make_unique<MpiPeers>(mpi[1], PeerOptions{60s});
    all[1]->abandon("enough");
  });
  all[0] = std::make_unique<MpiPeers>(mpi[0], options);
  std::this_thread::sleep_for(1500ms);
  other.join();
  all.clear();
  ASSERT_EQ(called.size(), 1u);
  EXPECT_NE(called[0].find("gave up: enough"), std::string::npos) << called[0];
}

TEST(MpiPeers, RanksThatWaitForEachOtherAreTold) {
  FakeMpi mpi(2);
  const auto said = on_ranks(mpi, 2, 300ms, [](Peers& peers) {
    uint64_t word = 0;
    peers.wait(peers.receive(1 - peers.rank(), 3, &word, 8));
  });
  for (const std::string& each : said) {
    EXPECT_NE(each.find("all 2 ranks have waited for each other"), std::string::npos) << each;
    EXPECT_NE(each.find("rank 1 to receive 8 bytes from rank 0 (channel 3)"), std::string::npos);
  }
}

// Computing, and waiting for who computes, is no standstill, however long it takes.
TEST(MpiPeers, ARankThatComputesIsNotLost) {
  FakeMpi mpi(2);
  const auto said = on_ranks(mpi, 2, 300ms, [](Peers& peers) {
    if (peers.rank() == 0) std::this_thread::sleep_for(1s);
    peers.any(0);
    if (peers.rank() == 1) std::this_thread::sleep_for(1s);
    peers.any(0);
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

}  // namespace
}  // namespace ebb
