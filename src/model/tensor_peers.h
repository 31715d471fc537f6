// What ranks exchange that each have a part of the same blocks. Emits; runs nothing.
#pragma once

#include <string>
#include <vector>

#include "model/messages.h"

namespace ebb {

// Whether ranks can each have some of so many samples.
bool can_cut_tokens(int64_t samples, const RankPlace& place);

class TensorPeers {
 public:
  // `cut_tokens`: what lies between the products of blocks each rank has of its own samples alone,
  // where there are samples for all. The builder must outlive it. All of a stage's ranks write the
  // same calls in the same order.
  TensorPeers(Builder& b, const RankPlace& place, bool cut_tokens = false);

  // Each rank has made a part of the sum x: all get the whole, with the same bits. Whoever has the
  // n-th piece of x adds what all have of it, in the order of ranks, and hands that to the others.
  void sum(const std::string& name, Buf x);

  // Each rank has made its columns of `all` (R, N), in runs as equal as can be: all get all of it.
  void gather_columns(const std::string& name, Buf own, Buf all);
  // This rank's of them.
  Buf own_columns(const std::string& name, Buf all);

  // What the first of them has: the others get it.
  void hand_out(const std::string& name, Buf x);

  // ---- a micro-batch whose samples the ranks share: each has the rows of its own
  bool shares(int64_t samples) const;
  int64_t own_samples(int64_t samples) const { return piece(samples, place_.part()).count; }
  // Of x, which has as much of each of `samples` samples: what it has of this rank's.
  Buf of_own_samples(Buf x, int64_t samples);
  // Each rank has made a part of the sum x: `own` becomes the sum of this rank's samples, in the
  // same order of ranks as in sum().
  void sum_of_own_samples(const std::string& name, Buf x, int64_t samples, Buf own);
  // Each rank has made of_own_samples(x): all get all of it.
  void gather_samples(const std::string& name, Buf x, int64_t samples);

 private:
  // What each rank has of `count` elements that come in units of `unit`.
  using Pieces = std::vector<Share>;
  Pieces pieces(int64_t count, int64_t unit = 1) const;
  Pieces pieces_of(Buf x, int64_t samples) const;
  Share piece(int64_t count, int part) const { return nth_share(count, part, place_.tensor); }
  Buf elements(Buf of, const Share& some, Shape shape = {});
  // This rank's piece as each of the ranks has made it, in their order; of the others' nothing.
  std::vector<Buf> swap_parts(const std::string& name, Buf x, const Pieces& pieces);
  // Each rank has its piece of x whole: all get all of it.
  void swap_pieces(const std::string& name, Buf x, const Pieces& pieces);
  template <typename Body>
  void each_other(Body body) const;
  void exchange(const std::vector<Message>& in, const std::vector<Message>& out);
  void add_in_order(const std::string& name, const std::vector<Buf>& parts);

  Builder& b_;
  const RankPlace place_;
  const bool cut_tokens_;
  Messages messages_;  // none of them is open between two calls
};

// The rows of a micro-batch's tokens as a rank has them between the products of blocks: of all
// samples, or, where ranks share these, of its own alone.
class TokenRows {
 public:
  TokenRows(TensorPeers* peers, int64_t samples);

  int64_t samples() const { return own_; }  // whose rows are here
  Buf own(Buf all) const { return cut_ ? peers_->of_own_samples(all, all_) : all; }
  // Of what each rank has made its own: all.
  void gather(const std::string& name, Buf all) const {
    if (cut_) peers_->gather_samples(name, all, all_);
  }
  Buf gathered(Builder& b, const std::string& name, Buf own) const;
  // Where each rank has made a part of a sum of all rows: `sum` becomes what is here of it. Without
  // others, and where all rows are here, the part is made in the sum's own bytes.
  Buf part_of(Builder& b, const std::string& name, Buf sum) const;
  void sum(const std::string& name, Buf part, Buf sum) const;
  // Of such a part of a sum, what is here of the sum.
  Buf summed(Builder& b, const std::string& name, Buf part) const;

 private:
  Buf of_all(Builder& b, const std::string& name, Buf own) const;

  TensorPeers* peers_;
  int64_t all_;
  bool cut_;
  int64_t own_;
};

}  // namespace ebb
