// Ranks that fail together, and bytes that go between them in pieces.
#include "comm/agreement.h"

#include <gtest/gtest.h>

#include <numeric>

#include "comm/pieces.h"
#include "thread_peers.h"

namespace ebb {
namespace {

TEST(Agreement, EveryRankThrowsTheFailureOfTheLowest) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> said;
    const auto each = [&](Peers& peers) {
      agree(&peers, [] {});
      try {
        agree(&peers, [&] {
          if (peers.rank() == 3) fail(Exit::data, "three", "hint of three");
          if (peers.rank() == 1) fail(Exit::disk, "one", "hint of one");
        });
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::disk);
        EXPECT_EQ(e.hint(), "hint of one");
        throw;
      }
    };
    EXPECT_THROW(ThreadRanks::run(4, each, &said), Error);
    EXPECT_EQ(said, std::vector<std::string>(4, "rank 1: one"));
  }
}

TEST(Agreement, ABugOfOneIsABugToAll) {
  std::vector<std::string> said;
  const auto each = [](Peers& peers) {
    EXPECT_THROW(agree(&peers, [&] { require(peers.rank() != 1, "a rule"); }), Bug);
    agree(&peers, [&] { require(peers.rank() != 1, "a rule"); });
  };
  EXPECT_THROW(ThreadRanks::run(2, each, &said), Bug);
  EXPECT_EQ(said, (std::vector<std::string>{"rank 1: a rule", "rank 1: a rule"}));
}

TEST(Agreement, WhatIsAttemptedAfterAFailureIsLeftOut) {
  Attempt attempt;
  attempt.run([] {});
  EXPECT_TRUE(attempt);
  attempt.run([] { fail(Exit::disk, "first"); });
  attempt.run([] { FAIL(); });
  EXPECT_FALSE(attempt);
  Attempt other;
  EXPECT_THROW(other.run([] { fail(Exit::peer, "lost"); }), Error);
}

TEST(PeerPieces, BringEveryByteToItsPlace) {
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, kPiece, kPiece + 1, 2 * kPiece - 1, 5 * kPiece + 3}) {
    std::vector<char> sent(static_cast<size_t>(bytes));
    std::iota(sent.begin(), sent.end(), 0);
    ThreadRanks::run(2, [&](Peers& peers) {
      PeerPieces pieces(peers, 5);
      for (int again = 0; again < 2; ++again) {
        std::vector<char> here(sent.size());
        const auto put = [&](int64_t offset, std::byte* to, int64_t n) {
          std::memcpy(to, sent.data() + offset, static_cast<size_t>(n));
        };
        const auto take = [&](int64_t offset, const std::byte* from, int64_t n) {
          std::memcpy(here.data() + offset, from, static_cast<size_t>(n));
        };
        if (peers.rank() == 0) {
          pieces.send(1, bytes, put);
        } else {
          pieces.receive(0, bytes, take);
          EXPECT_EQ(here, sent);
        }
      }
    });
  }
}

TEST(PeerPieces, OfALostRankEndWithAnError) {
  EXPECT_THROW(ThreadRanks::run(2,
                                [](Peers& peers) {
                                  PeerPieces pieces(peers, 5);
                                  const auto each = [&](int64_t offset, std::byte*, int64_t) {
                                    if (peers.rank() == 1 && offset > 0) {
                                      throw std::runtime_error("killed");
                                    }
                                  };
                                  peers.rank() == 0 ? pieces.send(1, 4 * kPiece, each)
                                                    : pieces.receive(0, 4 * kPiece, each);
                                }),
               std::exception);
}

}  // namespace
}  // namespace ebb
