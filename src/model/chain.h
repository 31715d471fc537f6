// One chain of additions in the order of the samples: a rank begins with what the groups before it
// have added, adds its own samples and passes it on. The last group's sum is the whole. It goes
// back to all groups, or to the rank that owns the tensor.
#pragma once

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
  std::vector<Message> expected_;  // whole sums that are on their way, in their order
};

}  // namespace ebb
