// Drawing by all ranks of a run, for rank 0 to make pictures of.
#pragma once

#include "comm/agreement.h"
#include "comm/pieces.h"
#include "sample/draw.h"
#include "state/state.h"
#include "state/state_ranks.h"

namespace ebb {

// Where every rank has the weights, but the average of a tensor is with its owner alone: exchanges
// weights and averages, and gives all ranks the weights that owners then have. Called again, it
// puts everything back, bit for bit; that wants averages of fp32. Collective. Takes kLendingBytes
// of heap and nothing of the size of a tensor.
inline constexpr int64_t kLendingBytes = kPiecesBytes;
void exchange_averages(State& state, const DitConfig& config, const StateRanks& ranks);

// Draws in rounds, of a batch on each rank: places follow each other over the ranks, so that rank 0
// has a round in the order of places with its own batch and then one from each other rank, which it
// receives where its own was. (Had each rank one part of all pictures, the others would wait with
// their first batch until rank 0 had drawn its last.)
//
// Whether to stop is agreed before every call of the network, as it is asked alone: a call takes
// milliseconds to seconds, agreeing a fraction of one, and all ranks are equally far anyway. What
// makes one rank leave ends the round for all.
class SharedDrawing {
 public:
  // All must outlive it. The drawer's batch may differ between ranks: the smallest one counts.
  SharedDrawing(Drawer& drawer, Peers& peers) : drawer_(drawer), peers_(peers) {}

  // Draws with the averages, by a sampler of raw weights. Whatever drawing ends with, the state is
  // then what it was, unless a rank is lost.
  void lend_averages(State& state, const DitConfig& config, const StateRanks& ranks);
  bool state_is_back() const { return back_; }

  // Collective. As Drawer::draw, with the same result on all ranks. label_of and watch are called
  // on the rank that draws, take on rank 0 alone, stop on all. Where one of them fails, or the
  // drawer does, every rank throws that.
  Drawn draw(int64_t count, const Drawer::LabelOf& label_of, uint64_t seed,
             const Drawer::Take& take, const Drawer::Stop& stop, const Drawer::Watch& watch);

 private:
  // What every call of the network and every round ends with: the flags of all ranks.
  uint64_t agreed(uint64_t own);
  void draw_rounds(int64_t count, const Drawer::LabelOf& label_of, uint64_t seed,
                   const Drawer::Take& take, const Drawer::Stop& stop, const Drawer::Watch& watch);
  Share places_of(int rank, Share round) const;
  void hand_over(Share round, const Drawer::Take& take);

  Drawer& drawer_;
  Peers& peers_;
  std::function<void()> exchange_;  // of weights and averages
  bool back_ = true;
  Attempt attempt_;
  uint64_t ended_ = 0;  // why all ranks leave, once it is agreed
};

}  // namespace ebb
