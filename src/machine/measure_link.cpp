#include "machine/measure_link.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/median.h"
#include "comm/host_channels.h"
#include "kernels/cpu/pages.h"
#include "plan/machine.h"

namespace ebb {

namespace {

static_assert(kLinkBytes <= kRunningBytes);

constexpr int kShortRounds = 15, kLongRounds = 5;
constexpr int64_t kShortBytes = 8, kFirstBytes = 64 << 10;
// A message that takes so long is long enough.
constexpr double kLongEnough = 0.02;

// One end of a pair: asks the other for messages, or sends what it is asked for.
class PairEnd {
 public:
  PairEnd(Peers& peers, int other, std::byte* bytes)
      : peers_(peers), other_(other), bytes_(bytes) {}

  Link ask_all() {
    ask(kShortBytes);  // first touches
    const double there_and_back = median_of(kShortRounds, kShortBytes);
    int64_t bytes = kFirstBytes;
    while (bytes < kLinkBytes && ask(bytes) < kLongEnough) bytes *= 2;
    const double seconds = median_of(kLongRounds, bytes);
    say(0);
    // Where others disturb, the short ones may have taken as long as the long ones.
    const double way = std::max(seconds - there_and_back, seconds / 2);
    return {static_cast<double>(bytes) / way, there_and_back / 2};
  }

  void answer_all() {
    for (;;) {
      int64_t wanted = 0;
      peers_.wait(peers_.receive(other_, kLinkTimes, &wanted, sizeof wanted));
      if (wanted == 0) return;
      peers_.wait(peers_.send(other_, kLinkTimes, bytes_, wanted));
    }
  }

 private:
  void say(int64_t wanted) { peers_.wait(peers_.send(other_, kLinkTimes, &wanted, sizeof wanted)); }

  // The seconds until so many bytes are there.
  double ask(int64_t bytes) {
    const auto start = std::chrono::steady_clock::now();
    const Peers::Ticket coming = peers_.receive(other_, kLinkTimes, bytes_, bytes);
    say(bytes);
    peers_.wait(coming);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  double median_of(int rounds, int64_t bytes) {
    std::vector<double> seconds(rounds);
    for (double& each : seconds) each = ask(bytes);
    return median(seconds);
  }

  Peers& peers_;
  const int other_;
  std::byte* const bytes_;
};

}  // namespace

Link measure_link(Peers& peers) {
  const cpu::Pages memory(kLinkBytes);
  std::string own;  // of the pair that this rank asks in
  for (const int turn : {0, 1}) {
    if (peers.rank() % 2 == turn && peers.rank() + 1 < peers.size()) {
      own = link_text(PairEnd(peers, peers.rank() + 1, memory.data()).ask_all());
    } else if (peers.rank() % 2 != turn && peers.rank() > 0) {
      PairEnd(peers, peers.rank() - 1, memory.data()).answer_all();
    }
  }
  Link worst;
  for (const std::string& told : peers.tell_all(own)) {
    if (told.empty()) continue;
    const Link link = parse_link(told, "a rank's link");
    const bool first = worst.bytes_per_second == 0;
    if (first || link.bytes_per_second < worst.bytes_per_second) {
      worst.bytes_per_second = link.bytes_per_second;
    }
    worst.latency_seconds = std::max(worst.latency_seconds, link.latency_seconds);
  }
  return parse_link(link_text(worst, 3), "the ranks' link");
}

}  // namespace ebb
