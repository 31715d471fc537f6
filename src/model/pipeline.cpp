#include "model/pipeline.h"

#include <algorithm>

namespace ebb {

std::vector<StageWork> stage_order(const RankPlace& place, const StageParts& parts) {
  using Kind = StageWork::Kind;
  const auto behind = static_cast<size_t>(place.pipe - 1 - place.stage());
  const bool late = parts.order != StageOrder::in_turn;
  const bool further = parts.order == StageOrder::late_ahead && !place.last_stage();
  const size_t ahead = std::min(behind + (further ? 1 : 0), parts.count);
  const auto delay = static_cast<size_t>(place.stage());
  std::vector<StageWork> order;
  size_t made = 0;  // parts whose matrices are
  const auto make_up_to = [&](size_t part) {
    while (late && made < part) order.push_back({Kind::matrices, made++});
  };
  for (size_t i = 0; i < parts.count + ahead; ++i) {
    if (i < parts.count) order.push_back({Kind::forward, i});
    if (i < ahead) continue;
    const size_t part = i - ahead;
    if (parts.begins_segment(part)) make_up_to(part);
    order.push_back({Kind::backward, part});
    if (part >= delay) make_up_to(part - delay + 1);
  }
  make_up_to(parts.count);
  return order;
}

void Boundaries::expect(const StageWork& work, const Dit& model) {
  const auto begin = [&](const char* name, Buf x, int peer, Channel channel) {
    messages_.receive_begin({name, x, peer, channel});
  };
  if (work.kind == StageWork::Kind::forward && !place_.first_stage()) {
    inputs_.push_back(model.boundary(b_));
    begin("x", inputs_.back().x, before(), kActivations);
    begin("silu_c", inputs_.back().silu_c, before(), kActivations);
  }
  if (work.kind == StageWork::Kind::backward && !place_.last_stage()) {
    gradients_.push_back(model.boundary_gradients(b_));
    begin("d.x", gradients_.back().dx, behind(), kActivationGradients);
    begin("d.silu_c", gradients_.back().dsilu_c, behind(), kActivationGradients);
  }
}

Dit::Embedded Boundaries::input() {
  const Dit::Embedded made = inputs_.front();
  inputs_.pop_front();
  messages_.receive_end({"x", made.x, before(), kActivations});
  messages_.receive_end({"silu_c", made.silu_c, before(), kActivations});
  return made;
}

Dit::Gradients Boundaries::gradients() {
  const Dit::Gradients made = gradients_.front();
  gradients_.pop_front();
  messages_.receive_end({"d.x", made.dx, behind(), kActivationGradients});
  messages_.receive_end({"d.silu_c", made.dsilu_c, behind(), kActivationGradients});
  return made;
}

void Boundaries::pass(const Dit::Embedded& output) {
  messages_.send({"x", output.x, behind(), kActivations});
  messages_.send({"silu_c", output.silu_c, behind(), kActivations});
}

void Boundaries::pass_back(const Dit::Gradients& made) {
  messages_.send({"d.x", made.dx, before(), kActivationGradients});
  messages_.send({"d.silu_c", made.dsilu_c, before(), kActivationGradients});
}

}  // namespace ebb
