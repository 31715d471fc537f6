// Sums over ranks that have the bits of one rank alone. Every gradient is one chain of additions in
// the order of the samples: a rank begins with what the groups before it have added, adds its own
// samples and passes it on. The last group's sum is the whole. It goes back to all groups, or to
// the rank that owns the tensor. Emits; runs nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/messages.h"

namespace ebb {

class Chain {
 public:
  // All must outlive it. Ranks write their calls in the same order. `specs`: all of the model.
  Chain(Builder& b, Messages& messages, const RankPlace& place, Shard shard,
        const std::vector<ParamSpec>& specs);

  // Whether this rank updates the tensor.
  bool owns(const ParamSpec& spec) const;
  // What a gradient is here while it is made: of the whole batch at its end, or a part of the sum
  // that goes on to another rank.
  Purpose purpose(const ParamSpec& spec) const;

  // While gradients are made: brings what the groups before this one have added,
  bool begins_elsewhere() const { return !place_.first_group(); }
  void begin(const ParamSpec& spec, Buf gradient);
  // passes it on, and prepares for the whole where that is wanted here.
  void complete(const ParamSpec& spec, Buf gradient);

  // After all of them: the whole sums of what this rank owns are here.
  void finish();
  Buf whole(const ParamSpec& spec) const { return whole_.at(spec.name); }

  // Of `norms` each rank has made the numbers of its own tensors: all ranks get all.
  void share_norms(Buf norms);
  // The owner's updated weight, to all groups.
  void share_weight(const ParamSpec& spec, Buf weight);
  // The loss is such a sum too, and all ranks want to know it: before and after this one has added
  // its part, if it has the last stage.
  void begin_loss(Buf loss);
  void share_loss(Buf loss);

 private:
  bool to_all() const { return shard_ == Shard::off; }

  Builder& b_;
  Messages& messages_;
  const RankPlace place_;
  const Shard shard_;
  const std::vector<int> owners_;  // in the order of trained tensors
  std::map<std::string, int> owner_;
  std::map<std::string, Buf> whole_;
  std::vector<Message> expected_;  // whole sums that are on their way, in their order
};

}  // namespace ebb
