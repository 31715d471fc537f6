// What ranks exchange that each have a part of the same blocks. Emits; runs nothing.
#pragma once

#include <string>
#include <vector>

#include "model/messages.h"

namespace ebb {

class TensorPeers {
 public:
  // The builder must outlive it. All of a stage's ranks write the same calls in the same order.
  TensorPeers(Builder& b, const RankPlace& place);

  // Each rank has made a part of the sum x: all get the whole, with the same bits. Whoever has the
  // n-th piece of x adds what all have of it, in the order of ranks, and hands that to the others.
  void sum(const std::string& name, Buf x);

  // Each rank has made its columns of `all` (R, N), in runs as equal as can be: all get all of it.
  void gather_columns(const std::string& name, Buf own, Buf all);
  // This rank's of them.
  Buf own_columns(const std::string& name, Buf all);

  // What the first of them has: the others get it.
  void hand_out(const std::string& name, Buf x);

 private:
  Share piece(int64_t count, int part) const { return nth_share(count, part, place_.tensor); }
  Buf elements(Buf of, const Share& some);
  template <typename Body>
  void each_other(Body body) const;
  void exchange(const std::vector<Message>& in, const std::vector<Message>& out);
  void add_in_order(const std::string& name, Buf own, const std::vector<Buf>& others);

  Builder& b_;
  const RankPlace place_;
  Messages messages_;  // none of them is open between two calls
};

}  // namespace ebb
