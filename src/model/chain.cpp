#include "model/chain.h"

#include <algorithm>

#include "base/error.h"

namespace ebb {

Chain::Chain(Builder& b, Messages& messages, const RankPlace& place, Shard shard,
             const std::vector<ParamSpec>& specs)
    : b_(b),
      messages_(messages),
      place_(place),
      shard_(shard),
      owners_(owners(specs, place, shard)) {
  size_t next = 0;
  for (const ParamSpec& spec : specs) {
    if (spec.trained()) owner_[spec.name] = owners_[next++];
  }
}

bool Chain::owns(const ParamSpec& spec) const { return owner_.at(spec.name) == place_.rank; }

Purpose Chain::purpose(const ParamSpec& spec) const {
  return place_.last_group() && owns(spec) ? Purpose::gradient : Purpose::exchange;
}

// ---- sums ---------------------------------------------------------------------------------------

void Chain::begin(const ParamSpec& spec, Buf gradient) {
  if (!begins_elsewhere()) return;
  messages_.receive({spec.name, gradient, place_.in_group(place_.group() - 1), kPartialSums});
}

void Chain::complete(const ParamSpec& spec, Buf gradient) {
  const int owner = owner_.at(spec.name);
  const int before = place_.in_group(place_.group() - 1);
  if (place_.last_group()) {
    if (owns(spec)) whole_[spec.name] = gradient;
    // Whoever takes it has begun to: it passed its own part on before.
    if (to_all()) messages_.send({spec.name, gradient, before, kFinishedSums});
    if (!owns(spec)) messages_.send({spec.name, gradient, owner, kFinishedSums});
    return;
  }
  const int next = place_.in_group(place_.group() + 1);
  messages_.send({spec.name, gradient, next, kPartialSums});
  if (!owns(spec)) return;
  const Buf whole = b_.declare_numbered(
      {"grad." + spec.name, spec.layer, Purpose::gradient, b_.type(gradient), b_.shape(gradient)});
  const int from = to_all() ? next : place_.in_group(place_.data - 1);
  expected_.push_back({spec.name, whole, from, kFinishedSums});
  messages_.receive_begin(expected_.back());
  whole_[spec.name] = whole;
}

void Chain::finish() {
  for (const Message& m : expected_) {
    messages_.receive_end(m);
    if (to_all() && !place_.first_group()) {
      messages_.send({m.name, m.x, place_.in_group(place_.group() - 1), kFinishedSums});
    }
  }
  expected_.clear();
}

void Chain::begin_loss(Buf loss) {
  if (!begins_elsewhere()) return;
  messages_.receive({"loss", loss, place_.in_group(place_.group() - 1), kLosses});
}

// Along the groups, back again, and then to the stages before.
void Chain::share_loss(Buf loss) {
  const int stage = place_.stage(), last = place_.pipe - 1;
  if (stage == last) {
    const Message on{"loss", loss, place_.in_group(place_.group() + 1), kLosses};
    const Message back{"loss", loss, place_.in_group(place_.group() - 1), kLosses};
    if (!place_.last_group()) messages_.send(on);
    messages_.wait_for_sends();
    if (!place_.last_group()) messages_.receive(on);
    if (!place_.first_group()) messages_.send(back);
  } else {
    messages_.receive({"loss", loss, place_.rank + 1, kLosses});
  }
  if (stage > 0) messages_.send({"loss", loss, place_.rank - 1, kLosses});
}

// ---- what owners tell ---------------------------------------------------------------------------

void Chain::share_norms(Buf norms) {
  // The tensors of a rank follow each other. Each message has a view of its own.
  const auto part = [&](int rank) {
    const auto first = std::find(owners_.begin(), owners_.end(), rank);
    const auto count = std::count(owners_.begin(), owners_.end(), rank);
    return count > 0 ? b_.view(norms, {count}, first - owners_.begin(), 0) : Buf{};
  };
  const auto each_peer = [&](auto body) {
    for (int away = 1; away < place_.ranks(); ++away) {
      const int peer = (place_.rank + away) % place_.ranks();
      if (!to_all() || peer / place_.pipe == place_.group()) body(peer);
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

// Round the ring, from the owner on. All ranks go through the tensors in one order: whoever waits,
// waits for one that is at an earlier tensor.
void Chain::share_weight(const ParamSpec& spec, Buf weight) {
  if (to_all()) return;
  const int owner = owner_.at(spec.name);
  const int before = place_.in_group(place_.group() - 1);
  const int next = place_.in_group(place_.group() + 1);
  if (owner != place_.rank) messages_.receive({spec.name, weight, before, kWeights});
  if (next != owner) messages_.send({spec.name, weight, next, kWeights});
}

}  // namespace ebb
