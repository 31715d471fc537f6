#include "model/chain.h"

#include <utility>

namespace ebb {

Purpose Chain::purpose(const ParamSpec& spec) const {
  return place_.last_group() && owns(spec) ? Purpose::gradient : Purpose::exchange;
}

void Chain::begin(const ParamSpec& spec, Buf gradient) {
  messages_.receive({spec.name, gradient, place_.in_group(place_.group() - 1), kPartialSums});
}

void Chain::complete(const ParamSpec& spec, Buf gradient) {
  if (std::exchange(layer_, spec.layer) != spec.layer) ++layers_;
  if (place_.last_group()) {
    pass_back(spec, gradient);
    if (owns(spec)) is_whole(spec, gradient);
  } else {
    pass_on(spec, gradient);
  }
  // Every group behind this one may be a layer behind the one before it.
  const int behind = place_.data - 1 - place_.group();
  while (!keeps() && !expected_.empty() && expected_.front().layers + behind < layers_) {
    take_first_expected();
  }
}

// The last group's, to whoever takes it. That one has begun to: it passed its own part on before.
void Chain::pass_back(const ParamSpec& spec, Buf whole) {
  if (to_all() && !place_.first_group()) {
    messages_.send({spec.name, whole, place_.in_group(place_.group() - 1), kFinishedSums});
  }
  if (!owns(spec)) messages_.send({spec.name, whole, owner(spec), kFinishedSums});
}

void Chain::pass_on(const ParamSpec& spec, Buf gradient) {
  const int next = place_.in_group(place_.group() + 1);
  messages_.send({spec.name, gradient, next, kPartialSums});
  if (!owns(spec)) return;
  const Buf whole = declare_whole(spec, gradient);
  const int from = to_all() ? next : place_.in_group(place_.data - 1);
  expected_.push_back({&spec, {spec.name, whole, from, kFinishedSums}, layers_});
  messages_.receive_begin(expected_.back().message);
}

void Chain::take_first_expected() {
  const auto [spec, message, layers] = expected_.front();
  expected_.pop_front();
  messages_.receive_end(message);
  if (to_all() && !place_.first_group()) {
    messages_.send({message.name, message.x, place_.in_group(place_.group() - 1), kFinishedSums});
  }
  is_whole(*spec, message.x);
}

void Chain::finish() {
  while (!expected_.empty()) take_first_expected();
}

}  // namespace ebb
