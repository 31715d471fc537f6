#include "model/step.h"

#include <fmt/format.h>

#include "base/error.h"
#include "model/batch.h"
#include "model/chain.h"
#include "model/pipeline.h"
#include "model/update.h"

namespace ebb {

namespace {

// Sends that a rank has under way: of a stage, those of two micro-batches.
constexpr size_t kChainSends = 3, kStageSends = 6;

class StepWriter {
 public:
  StepWriter(const DitConfig& config, const StepSpec& spec, const Device& device)
      : config_(config),
        spec_(spec),
        choices_(spec.choices),
        specs_(parameters(config)),
        b_(kStepProgram, device),
        params_(b_, own_specs(), choices_.storage),
        messages_(b_, spec.place.pipe > 1 ? kStageSends : kChainSends),
        batch_(b_, messages_, config, spec),
        chain_(b_, messages_, spec.place, spec.choices.shard, specs_),
        update_(b_, config, spec, specs_, params_) {
    if (choices_.schedule.empty()) {
      choices_.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet::all()));
    }
    for (Part part : micro_batches(spec.share().count, choices_.micro_batch)) {
      part.first += spec.share().first;
      // The micro-batches of a stage take turns: each is written down by itself.
      const int64_t written = spec.place.pipe > 1 ? part.count : 1;
      for (int64_t i = 0; i < written; ++i) {
        parts_.emplace_back(Part{part.first + i * part.size, part.size, part.count / written},
                            config, params_);
      }
    }
    b_.stack_lasting(choices_.layer_major);
    params_.wait_for_micro_batches(starts_layers());
  }

  Program write() {
    declare_results();
    const bool release = choices_.release && spec_.update;
    require(!release || choices_.layer_major || !accumulates(),
            "step: release with accumulation, but not layer by layer");
    if (release && spec_.norm_first()) {
      params_.on_complete([&](const ParamSpec& p, Buf g) { update_.norm(p, g); });
      pass();
      update_.clip();
      params_.forget_gradients();
      params_.on_complete([&](const ParamSpec& p, Buf g) { update_.apply(p, g); });
      pass();
    } else if (release) {
      params_.on_complete([&](const ParamSpec& p, Buf g) { update_.apply_at_once(p, g); });
      pass();
      update_.clip();
    } else {
      if (!spec_.place.alone()) check_ranks_can();
      if (spec_.place.data > 1) chain_sums();
      pass();
    }
    if (spec_.update && !release) update();
    if (!spec_.update) {
      for (const ParamSpec& spec : specs_) {
        if (spec.trained()) b_.output(params_.gradient(b_, spec.name));
      }
    }
    const std::vector<Home> homes = this->homes();
    return choices_.offload.moved(b_.finish(), homes);
  }

 private:
  // One of the parts, and how far its micro-batches have come.
  struct Way {
    Way(const Part& p, const DitConfig& config, Params& params)
        : part(p), model(config, p.size, params), x(config.depth() + 1), saved(config.depth()) {}
    Part part;
    Dit model;
    Buf silu_c;
    Batch::Taken taken;
    std::vector<Buf> x;  // the input of each block, and the last one's output
    std::vector<BlockTensors> saved;
    Dit::Gradients gradient;
  };

  // Of a stage only what its layers have.
  std::vector<ParamSpec> own_specs() const {
    std::vector<ParamSpec> own;
    for (const ParamSpec& p : specs_) {
      if (spec_.place.has(p.layer)) own.push_back(p);
    }
    return own;
  }

  void check_ranks_can() const {
    const RankPlace& place = spec_.place;
    require(spec_.update && !choices_.release, "step: ranks without an update, or with release");
    require(place.data == 1 || place.pipe == 1, "step: a chain of pipelines");
    require(place.pipe == 1 || !choices_.layer_major, "step: a pipeline, layer by layer");
    require(std::ssize(place.cuts) == place.pipe - 1, "step: {} stages with {} cuts", place.pipe,
            place.cuts.size());
    require(place.data == 1 || choices_.layer_major || !accumulates(),
            "step: a chain of ranks in batch order");
    require(choices_.shard == Shard::off || spec_.group_lasso == 0,
            "step: structures whose tensors lie with several ranks");
  }

  void chain_sums() {
    params_.gradients_are([&](const ParamSpec& p) { return chain_.purpose(p); });
    if (chain_.begins_elsewhere()) {
      params_.on_begin([&](const ParamSpec& p, Buf g) { chain_.begin(p, g); });
    }
    params_.on_complete([&](const ParamSpec& p, Buf g) { chain_.complete(p, g); });
  }

  // By buffer.
  std::vector<Home> homes() const {
    const Offload& offload = choices_.offload;
    const bool state = offload.state || offload.weights;
    require(!state || (choices_.release && spec_.update), "step: state away without release");
    std::vector<Home> homes(b_.program().buffers.size(), kOnDevice);
    for (const ParamSpec& spec : specs_) {
      if (!state || !spec.trained()) continue;
      for (const Buf b : update_.state(spec)) {
        homes[b.id] = offload.home(offload.takes(spec, b_.program().buffer(b).purpose));
      }
    }
    for (const Buf x : inputs_) homes[b_.program().root(x).id] = offload.home(offload.inputs);
    return homes;
  }

  bool accumulates() const {
    return micro_batch_count(spec_.share().count, choices_.micro_batch) > 1;
  }

  // A layer's gradients begin before its loops. Over ranks always, layer by layer: another rank may
  // have loops where this one has none, and all begin and end them in one order.
  bool starts_layers() const {
    return accumulates() || (choices_.layer_major && !spec_.place.alone());
  }

  Shape output_shape(int64_t samples) const {
    return {samples, config_.out_channels(), config_.image_size, config_.image_size};
  }

  void declare_results() {
    loss_ = b_.buffer(kLoss, {1});
    const bool makes = spec_.place.last_stage();
    if (makes && !chain_.begins_elsewhere()) b_.emit("loss.zero", Zero{1}, {}, {loss_});
    if (makes && !spec_.place.alone()) losses_ = b_.buffer("losses", {spec_.share().count});
    b_.output(loss_);
    if (!spec_.update) {
      output_ = b_.buffer(kOutput, output_shape(spec_.batch));
      b_.output(output_);
      return;
    }
    update_.declare([&](const ParamSpec& spec) { return chain_.owns(spec); });
  }

  // Forward and backward of the whole batch, every gradient made.
  void pass() {
    if (spec_.place.pipe > 1) {
      stage_by_stage();
    } else if (choices_.layer_major) {
      layer_by_layer();
    } else {
      if (accumulates()) params_.start_all_gradients(b_);
      for (Way& way : parts_) batch_by_batch(way);
    }
    first_pass_ = false;
  }

  void batch_by_batch(Way& way) {
    const auto loop = b_.loop(way.part.count);
    b_.mark();
    embed(way);
    for (const Action& action : choices_.schedule) {
      b_.mark();
      act(way, action);
    }
    b_.mark();
    embed_backward(way);
  }

  void layer_by_layer() {
    const auto each_part = [&](const char* starting_layer, auto body) {
      b_.mark();
      if (starting_layer != nullptr && starts_layers()) params_.start_gradients(b_, starting_layer);
      for (Way& way : parts_) {
        const auto loop = b_.loop(way.part.count);
        body(way);
      }
      params_.complete_waiting();
    };
    each_part(nullptr, [&](Way& way) { embed(way); });
    for (const Action& action : choices_.schedule) {
      const std::string layer = action.kind == Action::Kind::backward
                                    ? fmt::format("block{}", action.block)
                                    : std::string("final");
      each_part(action.kind == Action::Kind::forward ? nullptr : layer.c_str(),
                [&](Way& way) { act(way, action); });
    }
    each_part("embed", [&](Way& way) { embed_backward(way); });
  }

  void stage_by_stage() {
    const std::vector<StageWork> order = stage_order(spec_.place, parts_.size());
    Boundaries boundaries(b_, messages_, spec_.place);
    boundaries.expect(order[0], parts_[order[0].part].model);
    for (size_t i = 0; i < parts_.size(); ++i) batch_.expect(parts_[i].taken, parts_[i].part);
    for (size_t i = 0; i < order.size(); ++i) {
      b_.mark();
      if (i + 1 < order.size()) {
        boundaries.expect(order[i + 1], parts_[order[i + 1].part].model);
      }
      Way& way = parts_[order[i].part];
      order[i].forward ? stage_forward(way, boundaries) : stage_backward(way, boundaries);
    }
  }

  // The schedule's actions before or behind its turn, of this stage's blocks.
  void act_stage(Way& way, bool before_turn) {
    bool before = true;
    for (const Action& action : choices_.schedule) {
      const bool turns = action.kind == Action::Kind::turn;
      const bool own = action.block >= spec_.place.first_block() &&
                       action.block < spec_.place.end_block(config_.depth());
      before = before && !turns;
      if (!turns && own && before == before_turn) act(way, action);
    }
  }

  void stage_forward(Way& way, Boundaries& boundaries) {
    const RankPlace& place = spec_.place;
    if (place.first_stage()) {
      embed(way);
    } else {
      const Dit::Embedded in = boundaries.input();
      way.x[place.first_block()] = in.x;
      way.silu_c = in.silu_c;
    }
    act_stage(way, true);
    if (!place.last_stage()) boundaries.pass({way.x[place.end_block(config_.depth())], way.silu_c});
  }

  void stage_backward(Way& way, Boundaries& boundaries) {
    if (spec_.place.last_stage()) {
      batch_.take(way.taken, way.part);
      turn(way);
    } else {
      way.gradient = boundaries.gradients();
    }
    act_stage(way, false);
    if (spec_.place.first_stage()) {
      embed_backward(way);
    } else {
      boundaries.pass_back(way.gradient);
    }
  }

  void act(Way& way, const Action& action) {
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

  Dit::Input network_input(Way& way) {
    const Batch::Samples s = batch_.samples(way.part, way.taken);
    const Buf xt = batch_.noised(s, way.part);
    return {xt, s.t, batch_.shown_labels(s, way.part)};
  }

  void embed(Way& way) {
    batch_.take(way.taken, way.part);
    const Dit::Embedded made = way.model.embed(b_, network_input(way));
    way.x[0] = made.x;
    inputs_.push_back(made.x);
    way.silu_c = made.silu_c;
  }

  void embed_backward(Way& way) {
    way.model.embed_backward(b_, network_input(way), way.gradient.dx, way.gradient.dsilu_c);
  }

  void turn(Way& way) {
    const Buf output =
        output_ ? batch_.of(output_, way.part) : b_.buffer(kOutput, output_shape(way.part.size));
    const Dit::Final f = way.model.finish(b_, output, way.x[config_.depth()], way.silu_c);
    way.gradient = way.model.finish_backward(b_, f, loss(way, output));
  }

  // Adds this part's share of the loss of the mean sample; returns its gradient by the output.
  Buf loss(Way& way, Buf output) {
    const int64_t B = way.part.size;
    const auto weight = static_cast<float>(1.0 / static_cast<double>(spec_.batch));
    const Batch::Samples s = batch_.samples(way.part, way.taken);
    const Buf losses = losses_ ? batch_.of_share(losses_, way.part) : b_.buffer("losses", {B});
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
    if (first_pass_ && !losses_) b_.emit("loss.mean", SumLosses{B, weight}, {losses}, {}, {loss_});
    return doutput;
  }

  // ---- update ----------------------------------------------------------------------------------

  // Global norm, clip factor, AdamW and EMA of every trained tensor that is this rank's.
  void update() {
    b_.mark();
    const RankPlace& place = spec_.place;
    const bool chained = place.data > 1;
    const auto each = [&](auto body) {
      for (const ParamSpec& spec : specs_) {
        if (!spec.trained() || !chain_.owns(spec)) continue;
        body(spec, chained ? chain_.whole(spec) : params_.gradient(b_, spec.name));
      }
    };
    if (!place.alone()) sum_losses();
    if (chained) chain_.finish();
    each([&](const ParamSpec& spec, Buf gradient) { update_.norm(spec, gradient); });
    if (place.pipe > 1 || choices_.shard != Shard::off) chain_.share_norms(update_.norms());
    update_.clip();
    each([&](const ParamSpec& spec, Buf gradient) { update_.apply(spec, gradient); });
    for (const ParamSpec& spec : specs_) {
      if (!chained || !spec.trained() || !place.has(spec.layer)) continue;
      chain_.share_weight(spec, params_.weight(spec.name));
    }
    messages_.wait_for_sends();
  }

  void sum_losses() {
    if (losses_) {
      const auto weight = static_cast<float>(1.0 / static_cast<double>(spec_.batch));
      chain_.begin_loss(loss_);
      b_.emit("loss.mean", SumLosses{spec_.share().count, weight}, {losses_}, {}, {loss_});
    }
    chain_.share_loss(loss_);
  }

  const DitConfig& config_;
  const StepSpec& spec_;
  Choices choices_;
  const std::vector<ParamSpec> specs_;
  Builder b_;
  Params params_;
  Messages messages_;
  Batch batch_;
  Chain chain_;
  Update update_;
  std::vector<Way> parts_;
  Buf loss_, output_;        // what the host reads
  Buf losses_;               // of each sample, where ranks add them up
  std::vector<Buf> inputs_;  // of blocks
  bool first_pass_ = true;
};

}  // namespace

Program write_step(const DitConfig& config, const StepSpec& spec, const Device& device) {
  return StepWriter(config, spec, device).write();
}

}  // namespace ebb
