#include "machine/measure_link.h"

#include <gtest/gtest.h>

#include <map>

#include "thread_peers.h"

namespace ebb {
namespace {

// Ranks of which one pair has a slow link.
class SlowPair final : public Peers {
 public:
  SlowPair(Peers& peers, int first, const Link& link) : peers_(peers), first_(first), link_(link) {
    set_place(peers.rank(), peers.size());
  }
  void wait(Ticket ticket) override { peers_.wait(ticket); }
  void meet(Ticket ticket) override { peers_.meet(ticket); }
  void leave() override {}
  void abandon(const std::string& why) override { peers_.abandon(why); }

 private:
  Ticket begin(const PeerMessage& m) override {
    const int channel = std::min(m.channel, kChannels - 1);  // of what all tell each other, too
    if (!m.sends) return peers_.receive(m.peer, channel, m.bytes, m.n);
    if (std::min(rank(), m.peer) == first_ && std::max(rank(), m.peer) == first_ + 1) {
      std::this_thread::sleep_for(std::chrono::duration<double>(link_.seconds(m.n)));
    }
    return peers_.send(m.peer, channel, m.bytes, m.n);
  }
  Peers& peers_;
  const int first_;
  const Link link_;
};

// What each of so many ranks has measured, and what each has sent for it.
struct Found {
  std::vector<Link> links;
  std::vector<int64_t> sent;
};
Found measured(int ranks, int first, const Link& link) {
  Found found{std::vector<Link>(ranks), std::vector<int64_t>(ranks)};
  ThreadRanks::run(ranks, [&](Peers& peers) {
    SlowPair slow(peers, first, link);
    found.links[peers.rank()] = measure_link(slow);
    found.sent[peers.rank()] = slow.sent_bytes();
  });
  return found;
}

// A busy machine delays short messages and long ones: no more than half of a long one's time is
// ever taken for latency.
TEST(MeasureLink, TheSlowestPairCountsForAllRanks) {
  for (const int first : {0, 1}) {
    const Found found = measured(3, first, {100e6, 2e-3});
    for (const Link& link : found.links) {
      EXPECT_LT(link.bytes_per_second, 2.1 * 100e6);
      EXPECT_GT(link.bytes_per_second, 1e6);
      EXPECT_GT(link.latency_seconds, 1.9e-3);
      EXPECT_LT(link.latency_seconds, 1);
      EXPECT_EQ(link_text(link), link_text(found.links[0])) << "the same for all";
    }
  }
}

TEST(MeasureLink, ASlowLinkIsAskedForLess) {
  const Found slow = measured(2, 0, {2.5e6, 1e-4});
  EXPECT_LT(slow.links[0].bytes_per_second, 2.1 * 2.5e6);
  EXPECT_LT(slow.sent[1], 500'000);
  int64_t most = 0;  // a busy machine can look slow
  for (int i = 0; i < 5; ++i) most = std::max(most, measured(2, 1, {}).sent[1]);
  EXPECT_GT(most, 5 * kLinkBytes);
  EXPECT_LT(most, 8 * kLinkBytes);
}

}  // namespace
}  // namespace ebb
