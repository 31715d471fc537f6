// A binary tree of additions over equal segments of the batch, its leaves: neighbours are added,
// then their sums. Where a chain would wait: bits are a matter of the number of leaves alone. A
// rank has some leaves that follow each other; their sums climb on from rank to rank towards one
// that is the tensor's root.
#pragma once

#include <string>
#include <vector>

#include "model/sums.h"

namespace ebb {

class Tree final : public Sums {
 public:
  Tree(Builder& b, Messages& messages, const StepSpec& step, const std::vector<ParamSpec>& specs);
  Purpose purpose(const ParamSpec& spec) const override;
  void begin(const ParamSpec&, Buf) override {}
  void complete(const ParamSpec& spec, Buf gradient) override;
  void finish() override;

 private:
  // What a tensor's leaves have come to so far: sums that wait for their neighbours.
  struct Own {
    int leaves = 0;
    std::vector<Buf> sums;
  };
  struct Climb {
    const ParamSpec* spec;
    Buf sum;
    int level;   // groups that differ in this bit are added next
    Buf coming;  // their sum
  };
  int root(const ParamSpec& spec) const { return roots_.at(spec.name); }
  int neighbour(int level) const { return place_.in_group(place_.group() ^ (1 << level)); }
  void climb(const ParamSpec& spec, Buf sum, int level);
  void arrive();

  const std::vector<ParamSpec>& specs_;
  const int leaves_;  // of each group
  std::map<std::string, int> roots_;
  std::map<std::string, Own> own_;
  std::vector<Climb> climbs_;  // in the order of their messages
};

}  // namespace ebb
