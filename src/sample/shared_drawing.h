// Drawing by all ranks of a run, for rank 0 to make pictures of.
#pragma once

#include "comm/agreement.h"
#include "sample/draw.h"

namespace ebb {

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

  // Collective. As Drawer::draw, with the same result on all ranks. label_of is called on the rank
  // that draws, take on rank 0 alone, stop and watch on all. Where one of them fails, or the drawer
  // does, every rank throws that.
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
  Attempt attempt_;
  uint64_t ended_ = 0;  // why all ranks leave, once it is agreed
};

}  // namespace ebb
