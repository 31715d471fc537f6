// One chain of additions in the order of the samples: a rank begins with what the groups before it
// have added, adds its own samples and passes it on. The last group's sum is the whole. It goes
// back to all groups, or to the rank that owns the tensor.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "model/sums.h"

namespace ebb {

class Chain final : public Sums {
 public:
  using Sums::Sums;
  Purpose purpose(const ParamSpec& spec) const override;
  bool begins_elsewhere() const override { return !place_.first_group(); }
  void begin(const ParamSpec& spec, Buf gradient) override;
  void complete(const ParamSpec& spec, Buf gradient) override;
  void finish() override;

 private:
  // A whole sum that is on its way, since so many layers were complete.
  struct Expected {
    const ParamSpec* spec;
    Message message;
    int layers;
  };
  void pass_on(const ParamSpec& spec, Buf gradient);
  void pass_back(const ParamSpec& spec, Buf whole);
  void take_first_expected();

  std::deque<Expected> expected_;  // in the order in which they come
  std::string layer_;              // whose gradients were completed last
  int layers_ = 0;                 // begun to be completed
};

}  // namespace ebb
