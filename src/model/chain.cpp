#include "model/chain.h"

namespace ebb {

Purpose Chain::purpose(const ParamSpec& spec) const {
  return place_.last_group() && owns(spec) ? Purpose::gradient : Purpose::exchange;
}

void Chain::begin(const ParamSpec& spec, Buf gradient) {
  messages_.receive({spec.name, gradient, place_.in_group(place_.group() - 1), kPartialSums});
}

void Chain::complete(const ParamSpec& spec, Buf gradient) {
  if (place_.last_group()) {
    if (owns(spec)) whole_[spec.name] = gradient;
    if (place_.first_group()) return;  // there is one group
    // Whoever takes it has begun to: it passed its own part on before.
    const int before = place_.in_group(place_.group() - 1);
    if (to_all()) messages_.send({spec.name, gradient, before, kFinishedSums});
    if (!owns(spec)) messages_.send({spec.name, gradient, owner(spec), kFinishedSums});
    return;
  }
  const int next = place_.in_group(place_.group() + 1);
  messages_.send({spec.name, gradient, next, kPartialSums});
  if (!owns(spec)) return;
  const Buf whole = declare_whole(spec, gradient);
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

}  // namespace ebb
