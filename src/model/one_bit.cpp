#include "model/one_bit.h"

#include <cmath>
#include <utility>

#include "model/optimizer.h"

namespace ebb {

OneBit::OneBit(Builder& b, Messages& messages, const StepSpec& step,
               const std::vector<ParamSpec>& specs)
    : Sums(b, messages, step, specs), step_(step) {
  const std::vector<int> roots = owners(specs, step.place, Shard::grads);
  size_t next = 0;
  for (const ParamSpec& spec : specs) {
    if (!spec.trained()) continue;
    roots_[spec.name] = roots[next++];
    if (!place_.has(spec.layer)) continue;
    for (const StateBuffer& own : exchange_state(spec, storage_, place_.group())) {
      if (own.prefix == kSumRest && !is_root(spec)) continue;
      const std::string name = own.prefix + spec.name;
      kept_[name] = b_.declare({name, spec.layer, own.purpose, own.type, own.shape, true});
    }
    if (!storage_.sends_coded(spec) || owns(spec)) continue;
    const std::string name = kFirstMoment + spec.name;
    kept_[name] = b_.declare({name, spec.layer, Purpose::moment, DType::f32, spec.stored(), true});
  }
}

Purpose OneBit::purpose(const ParamSpec&) const {
  const bool stays = storage_.exchange.feedback || accumulates(step_, step_.choices.micro_batch);
  return stays ? Purpose::gradient : Purpose::exchange;
}

// ---- what one rank sends ------------------------------------------------------------------------

Buf OneBit::numbered(const std::string& name, const ParamSpec& spec, DType type, Shape shape) {
  return b_.declare_numbered(
      {name + spec.name, spec.layer, Purpose::exchange, type, std::move(shape)});
}

OneBit::Signs OneBit::declare_signs(const ParamSpec& spec) {
  return {numbered("code.", spec, DType::u8, {sign_bytes(spec.count())}),
          numbered("code.scale.", spec, DType::f32, {1})};
}

std::vector<Buf> OneBit::declare_like(const ParamSpec& spec, Buf gradient) {
  if (storage_.sends_coded(spec)) return declare_signs(spec).parts();
  return {numbered("code.", spec, b_.type(gradient), b_.shape(gradient))};
}

std::vector<Buf> OneBit::own_part(const ParamSpec& spec, Buf gradient) {
  if (!storage_.sends_coded(spec)) return {gradient};
  const Signs signs = declare_signs(spec);
  b_.emit("encode." + spec.name, SignMomentum{spec.count(), step_.beta1, place_.data},
          {gradient, gate_, b_.program().at(kFirstMoment + spec.name)}, signs.parts(),
          {kept(rest_prefix(place_.group()), spec)});
  return signs.parts();
}

// ---- to the one that adds up, and back ----------------------------------------------------------

void OneBit::start(const ParamSpec& spec, Buf gradient) {
  Coming coming{&spec, gradient, {}};
  const std::vector<Buf> own = own_part(spec, gradient);
  if (!is_root(spec)) {
    for (const Buf part : own) {
      messages_.send({spec.name, part, roots_.at(spec.name), kPartialSums});
    }
  } else {
    coming.of.resize(place_.data);
    coming.of[place_.group()] = own;
    for (int away = 1; away < place_.data; ++away) {
      const int from = (place_.group() + away) % place_.data;
      coming.of[from] = declare_like(spec, gradient);
      for (const Buf part : coming.of[from]) {
        messages_.receive_begin({spec.name, part, place_.in_group(from), kPartialSums});
      }
    }
  }
  coming_.push_back(std::move(coming));
}

// All but so many of those that are coming are added up.
void OneBit::arrive(size_t but_for) {
  while (coming_.size() > but_for) {
    const Coming c = std::move(coming_.front());
    coming_.pop_front();
    const Buf sum = is_root(*c.spec) ? sum_of(c) : Buf{};
    storage_.sends_coded(*c.spec) ? hand_on_signs(*c.spec, c.like, sum)
                                  : hand_on_sum(*c.spec, c.like, sum);
  }
}

// In the order of the groups.
Buf OneBit::sum_of(const Coming& c) {
  for (int away = 1; away < place_.data; ++away) {
    const int from = (place_.group() + away) % place_.data;
    for (const Buf part : c.of[from]) {
      messages_.receive_end({c.spec->name, part, place_.in_group(from), kPartialSums});
    }
  }
  const Buf sum = zeros(*c.spec, c.like);
  for (const std::vector<Buf>& part : c.of) {
    if (!storage_.sends_coded(*c.spec)) {
      add(*c.spec, sum, part[0]);
    } else {
      b_.emit("sum." + c.spec->name, SignAdd{c.spec->count()}, part, {}, {sum});
    }
  }
  return sum;
}

void OneBit::hand_on_sum(const ParamSpec& spec, Buf like, Buf sum) {
  if (to_all()) {
    if (!sum) sum = declare_whole(spec, like);
    messages_.hand_on(spec.name, sum, kFinishedSums, ring_from(roots_.at(spec.name)));
  }
  if (sum) is_whole(spec, sum);
}

// Every rank has the momentum, for its part of the next one: also of what others update.
void OneBit::hand_on_signs(const ParamSpec& spec, Buf like, Buf sum) {
  const Signs signs = declare_signs(spec);
  if (sum) {
    b_.emit("encode.sum." + spec.name, SignEncode{spec.count()}, {sum, sum_gate_}, signs.parts(),
            {kept(kSumRest, spec)});
  }
  for (const Buf part : signs.parts()) {
    messages_.hand_on(spec.name, part, kFinishedSums, ring_from(roots_.at(spec.name)));
  }
  if (!owns(spec)) {
    told_.push_back({&spec, signs});
    return;
  }
  const Buf whole = zeros(spec, like);
  b_.emit("signed." + spec.name, SignAdd{spec.count()}, signs.parts(), {}, {whole});
  is_whole(spec, whole);
}

// ---- a step -------------------------------------------------------------------------------------

void OneBit::complete(const ParamSpec& spec, Buf gradient) {
  if (storage_.exchange.feedback) {
    made_.push_back({&spec, gradient});
    return;
  }
  start(spec, gradient);
  arrive(kOnTheirWay);
}

void OneBit::finish() {
  if (storage_.exchange.feedback) {
    const float limit = step_.clip / std::sqrt(static_cast<float>(place_.data));
    const std::vector<Buf> gates = code_gates(b_, messages_, step_, made_, {limit, 0});
    gate_ = gates[0];
    sum_gate_ = gates[1];
  }
  for (const auto& [spec, gradient] : std::exchange(made_, {})) {
    visit_rest(*spec);
    start(*spec, gradient);
    arrive(kOnTheirWay);
  }
  arrive(0);
}

void OneBit::clipped(Buf clip) {
  for (const auto& [spec, signs] : std::exchange(told_, {})) {
    b_.emit("momentum." + spec->name, SignKeep{spec->count()}, {signs.bits, signs.scale, clip}, {},
            {kept(kFirstMoment, *spec)});
  }
}

}  // namespace ebb
