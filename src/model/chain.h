// Sums over ranks that have the bits of one rank alone. Every gradient is one chain of additions in
// the order of the samples: a rank begins with what the ranks before it have added, adds its own
// samples and passes it on. The last rank's sum is the whole. It goes back to all ranks, or to the
// one that owns the tensor. Emits; runs nothing.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "model/ranks.h"
#include "program/builder.h"

namespace ebb {

class Chain {
 public:
  // All must outlive it. Ranks write their calls in the same order.
  Chain(Builder& b, const RankPlace& place, Shard shard, const std::vector<ParamSpec>& specs);

  // Whether this rank updates the tensor.
  bool owns(const ParamSpec& spec) const;
  // What a gradient is here while it is made: of the whole batch at its end, or a part of the sum
  // that goes on to another rank.
  Purpose purpose(const ParamSpec& spec) const;

  // While gradients are made: brings what the ranks before this one have added,
  bool begins_elsewhere() const { return !place_.first(); }
  void begin(const ParamSpec& spec, Buf gradient);
  // passes it on, and prepares for the whole where that is wanted here.
  void complete(const ParamSpec& spec, Buf gradient);

  // After all of them: the whole sums of what this rank owns are here.
  void finish();
  Buf whole(const ParamSpec& spec) const { return whole_.at(spec.name); }

  // Of `norms` each rank has made the numbers of its own tensors: all ranks get all.
  void share_norms(Buf norms);
  // The owner's updated weight, to all.
  void share_weight(const ParamSpec& spec, Buf weight);
  // The loss is such a sum too, and all ranks want to know it: before and after this one has added
  // its part.
  void begin_loss(Buf loss);
  void share_loss(Buf loss);

  // Sends that are not over yet; to be called at the end.
  void wait_for_sends();

 private:
  void send(const std::string& name, Buf x, int peer, Channel channel);
  void receive_begin(const std::string& name, Buf x, int peer, Channel channel);
  void receive_end(const std::string& name, Buf x, int peer, Channel channel);
  void receive(const std::string& name, Buf x, int peer, Channel channel);
  void exchange(const std::string& name, Exchange::Part part, Buf x, int peer, Channel channel);
  void end_oldest_send();

  struct Message {
    std::string name;
    Buf x;
    int peer;
    Channel channel;
  };

  Builder& b_;
  const RankPlace place_;
  const Shard shard_;
  std::map<std::string, int> owner_;
  std::vector<int> owners_;  // in the order of trained tensors
  std::map<std::string, Buf> whole_;
  std::vector<Message> expected_;  // whole sums that are on their way, in their order
  std::deque<Message> sending_;
};

}  // namespace ebb
