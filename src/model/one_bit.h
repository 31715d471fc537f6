// Momenta that go as their signs (1-bit Adam, Tang et al. 2021): each rank's own to the one that
// adds them up, which tells all the signs of the sum. What either leaves behind it keeps for the
// next step. While the run warms up, and of what is small always, whole gradients go the same way.
// Bits are a matter of the number of groups alone.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "model/code_gate.h"
#include "model/sums.h"

namespace ebb {

class OneBit final : public Sums {
 public:
  OneBit(Builder& b, Messages& messages, const StepSpec& step, const std::vector<ParamSpec>& specs);
  Purpose purpose(const ParamSpec& spec) const override;
  void begin(const ParamSpec&, Buf) override {}
  void complete(const ParamSpec& spec, Buf gradient) override;
  void finish() override;
  void clipped(Buf clip) override;

 private:
  struct Signs {
    Buf bits, scale;
    std::vector<Buf> parts() const { return {bits, scale}; }
  };
  // A tensor whose sum is not made yet: of each group what it has sent, where they are added up.
  struct Coming {
    const ParamSpec* spec;
    Buf like;
    std::vector<std::vector<Buf>> of;
  };

  bool is_root(const ParamSpec& spec) const { return roots_.at(spec.name) == place_.rank; }
  Buf kept(const std::string& prefix, const ParamSpec& spec) const {
    return kept_.at(prefix + spec.name);
  }
  Buf numbered(const std::string& name, const ParamSpec& spec, DType type, Shape shape);
  Signs declare_signs(const ParamSpec& spec);
  std::vector<Buf> declare_like(const ParamSpec& spec, Buf gradient);
  std::vector<Buf> own_part(const ParamSpec& spec, Buf gradient);

  void start(const ParamSpec& spec, Buf gradient);
  void arrive(size_t but_for);
  Buf sum_of(const Coming& coming);
  void hand_on_sum(const ParamSpec& spec, Buf like, Buf sum);
  void hand_on_signs(const ParamSpec& spec, Buf like, Buf sum);

  const StepSpec& step_;
  std::map<std::string, int> roots_;  // who adds up
  std::map<std::string, Buf> kept_;   // from step to step, and the momentum
  std::vector<MadeGradient> made_;
  std::deque<Coming> coming_;
  struct Told {
    const ParamSpec* spec;
    Signs signs;
  };
  std::vector<Told> told_;  // of tensors that other ranks update
  Buf gate_, sum_gate_;     // of this rank's gradients, and of sums
};

}  // namespace ebb
