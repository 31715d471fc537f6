// Gradients that go coded: each rank's own, of all its samples, to those who add them up, in the
// order of the groups. Bits are a matter of the code and of the number of groups.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/code_gate.h"
#include "model/sums.h"

namespace ebb {

class Coded final : public Sums {
 public:
  Coded(Builder& b, Messages& messages, const StepSpec& step, const std::vector<ParamSpec>& specs);
  Purpose purpose(const ParamSpec& spec) const override;
  void begin(const ParamSpec&, Buf) override {}
  void complete(const ParamSpec& spec, Buf gradient) override;
  void finish() override;

 private:
  using Code = std::vector<Buf>;  // what is sent of a tensor
  // A tensor whose codes are on their way here: of each group, its own among them.
  struct Coming {
    const ParamSpec* spec;
    Buf like;
    std::vector<Code> of;
  };
  // A matrix whose code is the product of two narrow ones, each a sum over the groups.
  struct LowRank {
    const ParamSpec* spec;
    Buf gradient, left, right;
  };

  template <typename Body>
  void each_other_group(Body body) const {
    for (int away = 1; away < place_.data; ++away) body((place_.group() + away) % place_.data);
  }
  bool adds(const ParamSpec& spec, int group) const;
  bool is_low_rank(const ParamSpec& spec) const;
  Buf rest(const ParamSpec& spec) const {
    return kept_.at(rest_prefix(place_.group()) + spec.name);
  }
  Buf warm(const ParamSpec& spec) const { return kept_.at(kWarm + spec.name); }

  Code declare(const ParamSpec& spec, Buf gradient);
  Code encode(const ParamSpec& spec, Buf gradient);
  void add_code(const ParamSpec& spec, const Code& code, Buf sum);

  void start(const ParamSpec& spec, Buf gradient);
  void arrive(size_t but_for);
  void see_that_all_are_finite();
  void low_rank(std::vector<LowRank> matrices);
  using Finish = std::function<void(const ParamSpec& spec, Buf sum)>;  // of a sum, where it is made
  void sum_narrow(std::vector<LowRank>& matrices, Buf LowRank::*side, const Finish& finish);

  const StepSpec& step_;
  const ExchangeCode code_;
  std::map<std::string, int> roots_;         // who adds up narrow matrices
  std::map<std::string, uint32_t> numbers_;  // that key random bits
  std::map<std::string, Buf> kept_;          // from step to step
  std::vector<MadeGradient> made_;
  std::deque<Coming> coming_;
  Buf gate_;  // whether the step counts, and the factor of this rank's gradients
};

}  // namespace ebb
