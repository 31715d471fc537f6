// The update of a step: the state that it keeps, norms, clipping, the optimizer's ops and what
// shrinks weights behind them. Emits; runs nothing.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/layers.h"
#include "model/step.h"

namespace ebb {

class Update {
 public:
  // All must outlive it.
  Update(Builder& b, const DitConfig& config, const StepSpec& spec,
         const std::vector<ParamSpec>& specs, const Params& params);

  // The state of the tensors that `own` picks. Other tensors cannot be updated.
  using Own = std::function<bool(const ParamSpec&)>;
  void declare_state(const Own& own);
  // And what the host reads.
  void declare(const Own& own);
  const std::vector<Buf>& state(const ParamSpec& spec) const { return state_.at(spec.name); }
  Buf norms() const { return norms_; }
  Buf clipping() const { return clip_; }  // the norm of all, and the factor

  // Rows of the label table see the updates that they have not, before they are read: those of
  // labels y, or all of them. Where every row sees every update at once this does nothing.
  void catch_up(Buf y);
  void catch_up_all() { catch_up(Buf{}); }

  void norm(const ParamSpec& spec, Buf gradient);
  void clip();  // when all norms are there
  void apply(const ParamSpec& spec, Buf gradient) { apply(spec, gradient, clip_); }
  // Without clipping no other gradient matters: the tensor's own norm says whether it is finite.
  void apply_at_once(const ParamSpec& spec, Buf gradient);

 private:
  void apply(const ParamSpec& spec, Buf gradient, Buf clip);
  uint32_t number(const ParamSpec& spec) const;
  std::vector<Buf> weight(const ParamSpec& spec) const;  // as it is stored
  void shrink(const ParamSpec& spec, std::vector<Buf> reads);
  void shrink_group(const ParamSpec& spec, Buf clip);

  Builder& b_;
  const DitConfig& config_;
  const StepSpec& spec_;
  const std::vector<ParamSpec>& specs_;
  const Params& params_;
  const Storage& storage_;
  Buf norms_, clip_;
  std::map<std::string, uint32_t> numbers_;        // of the trained tensors
  int64_t norm_count_ = 0;                         // of all ranks' tensors
  std::map<std::string, int64_t> slots_;           // in norms, of those that this rank makes
  std::map<std::string, std::vector<Buf>> state_;  // weight, moments, average of each tensor
  std::map<std::string, int64_t> updated_;         // tensors of each group of structures, so far
};

}  // namespace ebb
