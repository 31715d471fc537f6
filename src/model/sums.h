// Sums of gradients over the samples of a batch, whoever has them, and what owners of tensors tell
// the others. In which order numbers are added is a matter of the batch, never of the ranks: a run
// has the same bits on any number of them. Emits; runs nothing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/messages.h"
#include "model/step.h"

namespace ebb {

class Sums {
 public:
  // All must outlive it. Ranks write their calls in the same order. `specs`: all of the model.
  Sums(Builder& b, Messages& messages, const StepSpec& step, const std::vector<ParamSpec>& specs);
  virtual ~Sums() = default;
  Sums(const Sums&) = delete;
  Sums& operator=(const Sums&) = delete;

  // Whether this rank updates the tensor.
  bool owns(const ParamSpec& spec) const { return owner(spec) == place_.rank; }

  // What a gradient is here while it is made: of the whole batch at its end, or a part of a sum.
  virtual Purpose purpose(const ParamSpec& spec) const = 0;
  // Whether gradients do not begin at zero here: then begin() brings what they begin with.
  virtual bool begins_elsewhere() const { return false; }
  virtual void begin(const ParamSpec& spec, Buf gradient) = 0;
  // The gradient of a segment of the batch is made. The whole sum is wanted by those who own it.
  virtual void complete(const ParamSpec& spec, Buf gradient) = 0;
  // After all of them: the whole sums of what this rank owns are here.
  virtual void finish() = 0;
  // All ranks know the norm, and nothing is updated yet.
  virtual void clipped(Buf /*clip*/) {}
  Buf whole(const ParamSpec& spec) const { return whole_.at(spec.name); }
  // Each of those is handed over soon after it was made, and not kept. Not set: all are kept.
  using Whole = std::function<void(const ParamSpec& spec, Buf sum)>;
  void on_whole(Whole body) { on_whole_ = std::move(body); }

  // Of `norms` each rank has made the numbers of its own tensors: all ranks get all.
  void share_norms(Buf norms);
  // The groups, for what one of them has: the owner of a tensor.
  Messages::Ring ring_from(const ParamSpec& spec) const { return ring_from(owner(spec)); }
  // The loss is a chain in the order of the samples, and all ranks want to know it: before and
  // after this one has added its part, if it has the last stage.
  bool loss_begins_elsewhere() const { return !place_.first_group(); }
  void begin_loss(Buf loss);
  void share_loss(Buf loss);

 protected:
  static constexpr size_t kOnTheirWay = 4;  // tensors whose codes are, while gradients are made

  bool to_all() const { return shard_ == Shard::off; }
  int owner(const ParamSpec& spec) const { return owner_.at(spec.name); }
  Messages::Ring ring_from(int rank) const;
  Buf declare_whole(const ParamSpec& spec, Buf like);
  Buf zeros(const ParamSpec& spec, Buf like);  // a whole sum to add to
  bool keeps() const { return !on_whole_; }
  void is_whole(const ParamSpec& spec, Buf sum);
  void add(const ParamSpec& spec, Buf to, Buf x);  // to += x
  // Before what was not sent of a tensor is read and written: what is away is fetched while others
  // are coded.
  void visit_rest(const ParamSpec& spec);

  Builder& b_;
  Messages& messages_;
  const RankPlace place_;
  const Shard shard_;
  const Storage storage_;
  const Offload offload_;

 private:
  std::map<std::string, Buf> whole_;
  Whole on_whole_;
  std::map<std::string, int> owner_;
  std::vector<int> norm_makers_;  // in the order of norm_slots()
};

// As the step asks for: a chain, a tree, or coded.
std::unique_ptr<Sums> sums_of(Builder& b, Messages& messages, const StepSpec& step,
                              const std::vector<ParamSpec>& specs);

}  // namespace ebb
