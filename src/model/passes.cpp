#include "model/passes.h"

#include <algorithm>

namespace ebb {

Shape output_shape(const DitConfig& config, int64_t samples) {
  return {samples, config.out_channels(), config.image_size, config.image_size};
}

namespace {

std::string layer_of(const Action& action) {
  return action.kind == Action::Kind::turn ? kFinalLayer : block_layer(action.block);
}

size_t micro_batches_of(StepSpec spec, int group, int64_t micro_batch) {
  spec.place.rank = spec.place.at(group, 0);
  int64_t all = 0;
  for (const Share& segment : spec.segments()) all += micro_batch_count(segment.count, micro_batch);
  return static_cast<size_t>(all);
}

}  // namespace

Passes::Passes(Builder& b, Messages& messages, const DitConfig& config, const StepSpec& spec,
               const Choices& choices, Params& params)
    : b_(b),
      config_(config),
      spec_(spec),
      choices_(choices),
      params_(params),
      messages_(messages),
      batch_(b, messages, config, spec) {
  // The micro-batches of a stage take turns, and what is brought for each cannot be in a loop: each
  // is written down by itself.
  const bool brings = choices.shard == Shard::weights && !choices.layer_major;
  const std::vector<Share> segments = spec.segments();
  for (size_t s = 0; s < segments.size(); ++s) {
    for (const Part& part : micro_batches(segments[s].count, choices.micro_batch)) {
      const int64_t written = spec.place.pipe > 1 || brings ? part.count : 1;
      for (int64_t i = 0; i < written; ++i) {
        const int64_t first = segments[s].first + part.first + i * part.size;
        ways_.emplace_back(Part{first, part.size, part.count / written}, static_cast<int>(s),
                           config, params);
      }
    }
  }
  turns_ = ways_.size();
  for (int group = 0; brings && group < spec.place.data; ++group) {
    turns_ = std::max(turns_, micro_batches_of(spec, group, choices.micro_batch));
  }
  const bool alone = spec.place.alone();
  const bool ordered = choices.layer_major || spec.leaves > 0;
  params_.wait_for_micro_batches(
      accumulates(spec, choices.micro_batch) || (!alone && ordered) ||
      (spec.place.pipe > 1 && choices.stage_order != StageOrder::in_turn));
}

// A layer's gradients begin before its loops. Over ranks always, layer by layer: another rank may
// have loops where this one has none, and all begin and end them in one order.
bool Passes::starts_layers() const {
  return accumulates(spec_, choices_.micro_batch) || (choices_.layer_major && !spec_.place.alone());
}

void Passes::run(const PassResults& results) {
  results_ = results;
  if (spec_.place.pipe > 1) {
    stage_by_stage();
  } else if (choices_.layer_major) {
    layer_by_layer();
  } else {
    batch_by_batch();
  }
  first_ = false;
}

// A segment's gradients are complete with its last micro-batch.
void Passes::end_segment() {
  params_.complete_waiting();
  if (spec_.leaves > 0) params_.forget_gradients();
}

template <typename Body>
void Passes::each_segment(Body body) {
  for (auto way = ways_.begin(); way != ways_.end();) {
    const auto end = std::find_if(way, ways_.end(),
                                  [&](const Way& other) { return other.segment != way->segment; });
    body(std::span<Way>(way, end));
    end_segment();
    way = end;
  }
}

void Passes::batch_by_batch() {
  each_segment([&](std::span<Way> ways) {
    if (accumulates(spec_, choices_.micro_batch)) params_.start_all_gradients(b_);
    for (Way& way : ways) {
      const auto loop = b_.loop(way.part.count);
      b_.mark();
      bring_(kEmbedding);
      embed(way);
      for (const Action& action : choices_.schedule) {
        b_.mark();
        bring_(layer_of(action));
        act(way, action);
      }
      b_.mark();
      bring_(kEmbedding);
      embed_backward(way);
    }
    if (&ways.back() == &ways_.back()) hand_on_weights();
  });
}

// Before this rank waits for sums of those who need them.
void Passes::hand_on_weights() {
  for (size_t turn = ways_.size(); turn < turns_; ++turn) {
    b_.mark();
    bring_(kEmbedding);
    for (const Action& action : choices_.schedule) bring_(layer_of(action));
    bring_(kEmbedding);
  }
}

void Passes::layer_by_layer() {
  const auto each_part = [&](const std::string& layer, bool makes_gradients, auto body) {
    b_.mark();
    bring_(layer);
    each_segment([&](std::span<Way> ways) {
      if (makes_gradients && starts_layers()) params_.start_gradients(b_, layer);
      for (Way& way : ways) {
        const auto loop = b_.loop(way.part.count);
        body(way);
      }
    });
  };
  each_part(kEmbedding, false, [&](Way& way) { embed(way); });
  for (const Action& action : choices_.schedule) {
    each_part(layer_of(action), action.kind != Action::Kind::forward,
              [&](Way& way) { act(way, action); });
  }
  each_part(kEmbedding, true, [&](Way& way) { embed_backward(way); });
}

void Passes::stage_by_stage() {
  Boundaries boundaries(b_, messages_, spec_.place);
  const bool late = choices_.stage_order != StageOrder::in_turn;
  const auto begins_segment = [&](size_t part) {
    return part > 0 && part < ways_.size() && ways_[part].segment != ways_[part - 1].segment;
  };
  const std::vector<StageWork> order =
      stage_order(spec_.place, {turns_, begins_segment, choices_.stage_order});
  const auto own = [&](const StageWork& work) { return work.part < ways_.size(); };
  auto next = order.begin();
  const auto expect_next = [&] {
    next = std::find_if(next, order.end(), [&](const StageWork& work) {
      return own(work) && work.kind != StageWork::Kind::matrices;
    });
    if (next != order.end()) boundaries.expect(*next, ways_[next->part].model);
    if (next != order.end()) ++next;
  };
  expect_next();
  for (Way& way : ways_) batch_.expect(way.taken, way.part);
  params_.put_off_gradients(late);
  for (const StageWork& work : order) {
    b_.mark();
    if (!own(work)) {
      for (const std::string& layer : stage_layers(work.kind)) bring_(layer);
      continue;
    }
    if (work.kind != StageWork::Kind::matrices) expect_next();
    stage_work(ways_[work.part], work.kind, boundaries);
    const bool makes = work.kind == (late ? StageWork::Kind::matrices : StageWork::Kind::backward);
    if (makes && begins_segment(work.part + 1)) end_segment();
  }
  end_segment();
}

void Passes::stage_work(Way& way, StageWork::Kind kind, Boundaries& boundaries) {
  switch (kind) {
    case StageWork::Kind::forward:
      stage_forward(way, boundaries);
      return;
    case StageWork::Kind::backward:
      stage_backward(way, boundaries);
      way.late = params_.take_late();
      return;
    case StageWork::Kind::matrices:
      for (const auto& make : std::exchange(way.late, {})) make();
      return;
  }
}

// Of a micro-batch through the stage, in the order of their need.
std::vector<std::string> Passes::stage_layers(StageWork::Kind kind) const {
  std::vector<std::string> layers;
  if (kind == StageWork::Kind::matrices) return layers;
  const RankPlace& place = spec_.place;
  const bool forward = kind == StageWork::Kind::forward;
  if (forward && place.first_stage()) layers.emplace_back(kEmbedding);
  if (!forward && place.last_stage()) layers.emplace_back(kFinalLayer);
  for (const Action& action : stage_actions(forward)) layers.push_back(layer_of(action));
  if (!forward && place.first_stage()) layers.emplace_back(kEmbedding);
  return layers;
}

// The schedule's actions before or behind its turn, of this stage's blocks.
std::vector<Action> Passes::stage_actions(bool before_turn) const {
  std::vector<Action> actions;
  bool before = true;
  for (const Action& action : choices_.schedule) {
    const bool turns = action.kind == Action::Kind::turn;
    const bool own = action.block >= spec_.place.first_block() &&
                     action.block < spec_.place.end_block(config_.depth());
    before = before && !turns;
    if (!turns && own && before == before_turn) actions.push_back(action);
  }
  return actions;
}

void Passes::act_stage(Way& way, bool before_turn) {
  for (const Action& action : stage_actions(before_turn)) {
    bring_(layer_of(action));
    act(way, action);
  }
}

void Passes::stage_forward(Way& way, Boundaries& boundaries) {
  const RankPlace& place = spec_.place;
  if (place.first_stage()) {
    bring_(kEmbedding);
    embed(way);
  } else {
    const Dit::Embedded in = boundaries.input();
    way.x[place.first_block()] = in.x;
    way.silu_c = in.silu_c;
  }
  act_stage(way, true);
  if (!place.last_stage()) boundaries.pass({way.x[place.end_block(config_.depth())], way.silu_c});
}

void Passes::stage_backward(Way& way, Boundaries& boundaries) {
  if (spec_.place.last_stage()) {
    batch_.take(way.taken, way.part);
    bring_(kFinalLayer);
    turn(way);
  } else {
    way.gradient = boundaries.gradients();
  }
  act_stage(way, false);
  if (spec_.place.first_stage()) {
    bring_(kEmbedding);
    embed_backward(way);
  } else {
    boundaries.pass_back(way.gradient);
  }
}

void Passes::act(Way& way, const Action& action) {
  const int i = action.block;
  switch (action.kind) {
    case Action::Kind::forward:
      way.x[i + 1] = way.model.block_output(b_, i);
      inputs_.push_back(way.x[i + 1]);
      way.saved[i] =
          way.model.block(i).forward(b_, way.x[i + 1], way.x[i], way.silu_c, action.keep);
      return;
    case Action::Kind::turn:
      turn(way);
      return;
    case Action::Kind::backward:
      way.saved[i].x = way.x[i];
      way.model.block(i).backward(b_, way.gradient.dx, way.gradient.dsilu_c, way.saved[i]);
      return;
  }
}

Dit::Input Passes::network_input(Way& way) {
  const Batch::Samples s = batch_.samples(way.part, way.taken);
  const Buf xt = batch_.noised(s, way.part);
  return {xt, s.t, batch_.shown_labels(s, way.part)};
}

void Passes::embed(Way& way) {
  batch_.take(way.taken, way.part);
  const Dit::Input in = network_input(way);
  if (in.y) on_labels_(in.y);
  const Dit::Embedded made = way.model.embed(b_, in);
  way.x[0] = made.x;
  inputs_.push_back(made.x);
  way.silu_c = made.silu_c;
}

void Passes::embed_backward(Way& way) {
  way.model.embed_backward(b_, network_input(way), way.gradient.dx, way.gradient.dsilu_c);
}

void Passes::turn(Way& way) {
  const Buf output = results_.output ? batch_.of(results_.output, way.part)
                                     : b_.buffer(kOutput, output_shape(config_, way.part.size));
  const Dit::Final f = way.model.finish(b_, output, way.x[config_.depth()], way.silu_c);
  way.gradient = way.model.finish_backward(b_, f, loss(way, output));
}

// Adds this part's share of the loss of the mean sample; returns its gradient by the output.
Buf Passes::loss(Way& way, Buf output) {
  const int64_t B = way.part.size;
  const auto weight = static_cast<float>(1.0 / static_cast<double>(spec_.batch));
  const Batch::Samples s = batch_.samples(way.part, way.taken);
  const Buf losses =
      results_.losses ? batch_.of_share(results_.losses, way.part) : b_.buffer("losses", {B});
  const Buf doutput = b_.buffer("d.output", b_.shape(output));
  if (config_.objective == Objective::ddpm) {
    b_.emit("loss.ddpm",
            DdpmLoss{B, config_.channels, config_.pixels(), config_.learn_sigma, weight},
            {output, s.x, s.noise, batch_.noised(s, way.part), s.t}, {losses, doutput});
  } else {
    b_.emit("loss.flow",
            FlowLoss{B, config_.channels, config_.pixels(), config_.learn_sigma, weight},
            {output, s.x, s.noise}, {losses, doutput});
  }
  if (first_ && !results_.losses) {
    b_.emit("loss.mean", SumLosses{B, weight}, {losses}, {}, {results_.loss});
  }
  return doutput;
}

}  // namespace ebb
