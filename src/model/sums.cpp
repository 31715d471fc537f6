#include "model/sums.h"

#include <algorithm>

#include "model/chain.h"
#include "model/coded.h"
#include "model/one_bit.h"
#include "model/tree.h"

namespace ebb {

Sums::Sums(Builder& b, Messages& messages, const StepSpec& step,
           const std::vector<ParamSpec>& specs)
    : b_(b),
      messages_(messages),
      place_(step.place),
      shard_(step.choices.shard),
      storage_(step.choices.storage),
      offload_(step.choices.offload) {
  const std::vector<int> all = owners(specs, place_, shard_);
  size_t next = 0;
  for (const ParamSpec& spec : specs) {
    if (spec.trained()) owner_[spec.name] = all[next++];
  }
  for (const NormSlot& slot : norm_slots(specs, place_, shard_)) norm_makers_.push_back(slot.rank);
}

Buf Sums::declare_whole(const ParamSpec& spec, Buf like) {
  return b_.declare_numbered(
      {"grad." + spec.name, spec.layer, Purpose::gradient, b_.type(like), b_.shape(like)});
}

Buf Sums::zeros(const ParamSpec& spec, Buf like) {
  const Buf sum = declare_whole(spec, like);
  b_.emit("zero." + spec.name, Zero{element_count(b_.shape(sum)), b_.type(sum)}, {}, {sum});
  return sum;
}

void Sums::is_whole(const ParamSpec& spec, Buf sum) {
  if (on_whole_) return on_whole_(spec, sum);
  whole_[spec.name] = sum;
}

void Sums::add(const ParamSpec& spec, Buf to, Buf x) {
  const Shape shape = b_.shape(x);
  const OpParams op = storage_.in_rows(spec) ? OpParams(AddLabelRows{shape[1] - 1, shape[0]})
                                             : OpParams(AddTo{element_count(shape)});
  b_.emit("sum." + spec.name, op, {x}, {}, {to});
}

void Sums::visit_rest(const ParamSpec& spec) {
  if (storage_.sends_coded(spec) && offload_.takes_rest(spec)) b_.cut();
}

void Sums::begin_loss(Buf loss) {
  if (!loss_begins_elsewhere()) return;
  messages_.receive({"loss", loss, place_.in_group(place_.group() - 1), kLosses});
}

// Along the groups, back again, and then to the stages before.
void Sums::share_loss(Buf loss) {
  const int stage = place_.stage(), last = place_.pipe - 1;
  if (stage == last) {
    const Message on{"loss", loss, place_.in_group(place_.group() + 1), kLosses};
    const Message back{"loss", loss, place_.in_group(place_.group() - 1), kLosses};
    if (!place_.last_group()) messages_.send(on);
    messages_.wait_for_sends();
    if (!place_.last_group()) messages_.receive(on);
    if (!place_.first_group()) messages_.send(back);
  } else {
    messages_.receive({"loss", loss, place_.in_stage(stage + 1), kLosses});
  }
  if (stage > 0) messages_.send({"loss", loss, place_.in_stage(stage - 1), kLosses});
}

void Sums::share_norms(Buf norms) {
  // Those of a rank follow each other. Each message has a view of its own.
  const auto part = [&](int rank) {
    const auto first = std::find(norm_makers_.begin(), norm_makers_.end(), rank);
    const auto count = std::count(norm_makers_.begin(), norm_makers_.end(), rank);
    return count > 0 ? b_.view(norms, {count}, first - norm_makers_.begin(), 0) : Buf{};
  };
  const auto each_peer = [&](auto body) {
    for (int away = 1; away < place_.ranks(); ++away) {
      const int peer = (place_.rank + away) % place_.ranks();
      if (!to_all() || place_.group_of(peer) == place_.group()) body(peer);
    }
  };
  std::vector<Message> coming;
  each_peer([&](int peer) {
    if (const Buf theirs = part(peer)) {
      coming.push_back({"norms", theirs, peer, kNormSums});
      messages_.receive_begin(coming.back());
    }
  });
  each_peer([&](int peer) {
    if (const Buf own = part(place_.rank)) messages_.send({"norms", own, peer, kNormSums});
  });
  for (const Message& m : coming) messages_.receive_end(m);
}

Messages::Ring Sums::ring_from(int rank) const {
  const int before = place_.in_group(place_.group() - 1);
  const int next = place_.in_group(place_.group() + 1);
  return {before, next, place_.rank == rank, next == rank};
}

std::unique_ptr<Sums> sums_of(Builder& b, Messages& messages, const StepSpec& step,
                              const std::vector<ParamSpec>& specs) {
  if (step.codes_gradients() && step.choices.storage.exchange.is_signs()) {
    return std::make_unique<OneBit>(b, messages, step, specs);
  }
  if (step.codes_gradients()) return std::make_unique<Coded>(b, messages, step, specs);
  if (step.leaves > 0) return std::make_unique<Tree>(b, messages, step, specs);
  return std::make_unique<Chain>(b, messages, step, specs);
}

}  // namespace ebb
