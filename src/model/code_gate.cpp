#include "model/code_gate.h"

#include "model/optimizer.h"

namespace ebb {

std::vector<Buf> code_gates(Builder& b, Messages& messages, const StepSpec& step,
                            const std::vector<MadeGradient>& made,
                            const std::vector<float>& limits) {
  const RankPlace& place = step.place;
  const auto tensors = std::ssize(made);
  const Buf norms = b.buffer("exchange.norms", {tensors}, Purpose::activation, DType::f64);
  for (int64_t i = 0; i < tensors; ++i) {
    const ParamSpec& spec = *made[i].spec;
    b.emit("exchange.norm." + spec.name, norm_op(spec, step.choices.storage, i), {made[i].gradient},
           {norms});
  }
  std::vector<Buf> clips;
  for (const float limit : limits) {
    clips.push_back(b.buffer("exchange.clip", {2}));
    b.emit("exchange.clip", ClipScale{0, tensors, limit}, {norms}, {clips.back()});
  }
  const int others = place.ranks() - 1;
  const Buf of_others = b.buffer("exchange.of_others", {others}, Purpose::exchange);
  const Buf own = b.view(clips[0], {1}, 0, 0);
  const auto each_other = [&](auto body) {
    for (int away = 1; away <= others; ++away) {
      const Buf slot = b.view(of_others, {1}, away - 1, 0);
      body(Message{"finite", slot, (place.rank + away) % place.ranks(), kNormSums});
    }
  };
  std::vector<Message> coming;
  each_other([&](const Message& m) {
    messages.receive_begin(m);
    coming.push_back(m);
  });
  each_other([&](Message m) {
    m.x = own;
    messages.send(m);
  });
  for (const Message& m : coming) messages.receive_end(m);
  std::vector<Buf> gates;
  for (const Buf clip : clips) {
    gates.push_back(b.buffer("exchange.gate", {2}));
    b.emit("exchange.gate", GateCodes{others}, {clip, of_others}, {gates.back()});
  }
  return gates;
}

}  // namespace ebb
