#include "sample/shared_drawing.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "comm/host_channels.h"

namespace ebb {

namespace {

constexpr uint64_t kStop = 1, kNotFinite = 2, kFailed = 4;

// Of the batches that ranks can draw at a time.
int64_t smallest_batch(Peers& peers, int64_t own) {
  int64_t least = own;
  for (const std::string& text : peers.tell_all(std::to_string(own))) {
    least = std::min(least, parse_int(text, "a rank's batch of pictures"));
  }
  return least;
}

}  // namespace

uint64_t SharedDrawing::agreed(uint64_t own) {
  return ended_ = peers_.any(own | (attempt_ ? 0 : kFailed));
}

Drawn SharedDrawing::draw(int64_t count, const Drawer::LabelOf& label_of, uint64_t seed,
                          const Drawer::Take& take, const Drawer::Stop& stop,
                          const Drawer::Watch& watch) {
  attempt_ = {};
  ended_ = 0;
  draw_rounds(count, label_of, seed, take, stop, watch);
  agree(peers_, attempt_.failure());
  if ((ended_ & kNotFinite) != 0) return Drawn::not_finite;
  return ended_ != 0 ? Drawn::stopped : Drawn::all;
}

void SharedDrawing::draw_rounds(int64_t count, const Drawer::LabelOf& label_of, uint64_t seed,
                                const Drawer::Take& take, const Drawer::Stop& stop,
                                const Drawer::Watch& watch) {
  const int64_t each = smallest_batch(peers_, drawer_.spec().batch) * peers_.size();
  for (int64_t first = 0; first < count && ended_ == 0; first += each) {
    const Share round{first, std::min(each, count - first)};
    const Share own = places_of(peers_.rank(), round);
    uint64_t flags = 0;
    const auto stops = [&] { return agreed(stop() ? kStop : 0) != 0; };
    attempt_.run([&] {
      if (own.count > 0) {
        const Drawn drawn = drawer_.draw_batch(own, label_of, seed, stops, watch);
        flags = drawn == Drawn::not_finite ? kNotFinite : 0;
      } else if (drawer_.spec().brings()) {  // another's picture, for others to have the weights
        drawer_.draw_batch({round.first, 1}, label_of, seed, stops, watch);
      } else {  // as often as those who draw
        for (int i = 0; i < drawer_.spec().steps && !stops(); ++i) {
          if (watch) watch(round.first, i + 1);
        }
      }
    });
    // Who has failed says so at once, wherever the others are.
    if (ended_ == 0) agreed(flags);
    if (ended_ == 0) hand_over(round, take);
  }
}

Share SharedDrawing::places_of(int rank, Share round) const {
  const Share share = RankPlace{peers_.size(), 1, rank}.share(round.count);
  return {round.first + share.first, share.count};
}

// Another rank's values are received even if nobody takes them any more: it counts on that.
void SharedDrawing::hand_over(Share round, const Drawer::Take& take) {
  for (int r = 0; r < peers_.size(); ++r) {
    const Share places = places_of(r, round);
    if (places.count == 0 || (peers_.rank() != 0 && peers_.rank() != r)) continue;
    const auto bytes = places.count * drawer_.sample_values() * static_cast<int64_t>(sizeof(float));
    if (peers_.rank() != 0) {
      peers_.wait(peers_.send(0, kDrawnValues, drawer_.values(), bytes));
      continue;
    }
    if (r != 0) peers_.wait(peers_.receive(r, kDrawnValues, drawer_.values(), bytes));
    attempt_.run([&] { take(places.first, places.count, drawer_.values()); });
  }
}

}  // namespace ebb
