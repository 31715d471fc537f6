#include "model/step.h"

#include <algorithm>

#include "base/error.h"
#include "model/passes.h"
#include "model/slices.h"
#include "model/sums.h"
#include "model/update.h"
#include "program/ahead.h"

namespace ebb {

std::vector<Share> StepSpec::segments() const {
  if (leaves == 0) return {share()};
  const int64_t each = leaves / place.data, first = place.group() * each;
  std::vector<Share> all;
  for (int64_t i = first; i < first + each; ++i) all.push_back(nth_share(batch, i, leaves));
  return all;
}

int64_t largest_segment(const StepSpec& spec) {
  const int64_t parts = spec.leaves > 0 ? spec.leaves : spec.place.data;
  return (spec.batch + parts - 1) / parts;
}

bool accumulates(const StepSpec& spec, int64_t micro_batch) {
  return micro_batch > 0 && largest_segment(spec) > micro_batch;
}

int64_t samples_together(const StepSpec& spec, int64_t micro_batch) {
  const int64_t least = spec.batch / (spec.leaves > 0 ? spec.leaves : spec.place.data);
  return micro_batch > 0 ? std::min(micro_batch, least) : least;
}

namespace {

// Sends that a rank has under way: of a stage, those of two micro-batches.
constexpr size_t kGroupSends = 6, kStageSends = 6;

class StepWriter {
 public:
  StepWriter(const DitConfig& config, const StepSpec& spec, const Device& device)
      : config_(sliced(config, spec.place)),
        spec_(spec),
        choices_(scheduled(spec.choices, config)),
        specs_(sliced_parameters(config, spec.place)),
        b_(kStepProgram, device),
        messages_(b_, spec.place.pipe > 1 ? kStageSends : kGroupSends),
        sums_(sums_of(b_, messages_, spec, specs_)),
        params_(b_, own_specs(), choices_.storage, "",
                [&](const ParamSpec& p) { return lies_here(p); }),
        peers_(b_, spec.place, choices_.cut_tokens),
        passes_(b_, messages_, config_, spec, choices_, params_with_peers()),
        update_(b_, config_, spec, specs_, params_) {
    b_.stack_lasting(choices_.layer_major);
  }

  Program write() {
    declare_results();
    check_can();
    passes_.on_labels([&](Buf y) { update_.catch_up(y); });
    if (summed()) sum_gradients();
    if (choices_.shard == Shard::weights) {
      passes_.on_layer([&](const std::string& layer) { bring(layer); });
    }
    if (!releases()) {
      pass();
      if (spec_.update) update();
    } else if (spec_.norm_first()) {
      each_whole([&](const ParamSpec& p, Buf g) { update_.norm(p, g); });
      pass();
      clip();
      params_.forget_gradients();
      each_whole([&](const ParamSpec& p, Buf g) { apply(p, g); });
      pass();
    } else {
      each_whole([&](const ParamSpec& p, Buf g) {
        messages_.wait_for_send_of(params_.weight(p.name));
        update_.apply_at_once(p, g);
      });
      pass();
      clip();
    }
    hand_on_weights();
    if (!spec_.update) {
      for (const ParamSpec& spec : specs_) {
        if (spec.trained()) b_.output(params_.gradient(b_, spec.name));
      }
    }
    const std::vector<Home> homes = this->homes();
    Program program = b_.finish();
    if (!spec_.place.alone()) program = receive_ahead(std::move(program));
    return choices_.offload.moved(std::move(program), homes);
  }

 private:
  // As blocks are to find them when they are made.
  Params& params_with_peers() {
    if (spec_.place.tensor > 1) params_.share_with(peers_);
    return params_;
  }

  static Choices scheduled(Choices choices, const DitConfig& config) {
    if (choices.schedule.empty()) {
      choices.schedule = plain_schedule(std::vector<KeepSet>(config.depth(), KeepSet::all()));
    }
    return choices;
  }

  // Of a stage only what its layers have.
  std::vector<ParamSpec> own_specs() const {
    std::vector<ParamSpec> own;
    for (const ParamSpec& p : specs_) {
      if (spec_.place.has(p.layer)) own.push_back(p);
    }
    return own;
  }

  bool lies_here(const ParamSpec& p) const {
    return choices_.shard != Shard::weights || !p.trained() || sums_->owns(p);
  }

  bool releases() const { return choices_.release && spec_.update; }

  // Gradients are not simply added to in one place.
  bool summed() const { return spec_.place.data > 1 || spec_.leaves > 0; }

  void check_can() const {
    const RankPlace& place = spec_.place;
    const bool several = accumulates(spec_, choices_.micro_batch);
    require(place.alone() || spec_.update, "step: ranks without an update");
    require(!releases() || choices_.layer_major || !several,
            "step: release with accumulation, but not layer by layer");
    require(!releases() || (place.pipe == 1 && spec_.leaves == 0),
            "step: release in a pipeline or of a tree");
    require(place.pipe == 1 || !choices_.layer_major, "step: a pipeline, layer by layer");
    const bool coded = spec_.codes_gradients();
    require(!coded || (!releases() && spec_.leaves == 0),
            "step: coded gradients and a tree, or release");
    const Storage& storage = choices_.storage;
    require(!coded || !storage.exchange.is_signs() ||
                (spec_.optimizer == Optimizer::adamw && storage.galore_rank == 0 &&
                 storage.moments == Moments::f32),
            "step: signs of other momenta than AdamW's");
    require(place.data == 1 || place.pipe == 1 || spec_.leaves > 0 || coded,
            "step: a chain of pipelines");
    require(std::ssize(place.cuts) == place.pipe - 1, "step: {} stages with {} cuts", place.pipe,
            place.cuts.size());
    require(place.data == 1 || spec_.leaves > 0 || choices_.layer_major || !several || coded,
            "step: a chain of ranks in batch order");
    require(place.tensor == 1 || !releases(), "step: release of parts of blocks");
    require(place.tensor == 1 || choices_.storage.activation == DType::f32,
            "step: sums of parts in 16 bits");
    require(place.tensor == 1 || spec_.optimizer != Optimizer::adafactor,
            "step: factored moments of parts");
    require(!choices_.cut_tokens ||
                can_cut_tokens(samples_together(spec_, choices_.micro_batch), place),
            "step: tokens of fewer samples than there are parts");
    require(choices_.shard == Shard::off || spec_.group_lasso == 0,
            "step: structures whose tensors lie with several ranks");
    require(choices_.storage.label_rows == 0 ||
                (spec_.update && choices_.shard == Shard::off && !choices_.offload.state),
            "step: rows of a table whose state is elsewhere");
  }

  void sum_gradients() {
    params_.gradients_are([&](const ParamSpec& p) { return sums_->purpose(p); });
    if (sums_->begins_elsewhere()) {
      params_.on_begin([&](const ParamSpec& p, Buf g) { sums_->begin(p, g); });
    }
    params_.on_complete([&](const ParamSpec& p, Buf g) { sums_->complete(p, g); });
  }

  // What is done with a gradient as soon as all of it is there.
  void each_whole(const Sums::Whole& body) {
    summed() ? sums_->on_whole(body) : params_.on_complete(body);
  }

  // The weights of a layer from their owners, for the ops that follow.
  void bring(const std::string& layer) {
    for (const ParamSpec& p : specs_) {
      if (p.layer != layer || !p.trained()) continue;
      params_.bring(b_, messages_, p.name, sums_->ring_from(p));
    }
  }

  // By buffer.
  std::vector<Home> homes() const {
    const Offload& offload = choices_.offload;
    const bool state = offload.state || offload.weights;
    require(!state || spec_.update, "step: state away without an update");
    require(!offload.weights || (choices_.release && spec_.place.alone()),
            "step: weights away without release, or from other ranks");
    std::vector<Home> homes(b_.program().buffers.size(), kOnDevice);
    for (const ParamSpec& spec : specs_) {
      if (!state || !spec.trained() || !sums_->owns(spec)) continue;
      for (const Buf b : update_.state(spec)) {
        homes[b.id] = offload.home(offload.takes(spec, b_.program().buffer(b).purpose));
      }
    }
    for (const ParamSpec& spec : own_specs()) {
      if (!spec_.codes_gradients() || !offload.takes_rest(spec)) continue;
      const Buf rest = b_.program().find(rest_prefix(spec_.place.group()) + spec.name);
      if (rest) homes[rest.id] = offload.home(true);
    }
    for (const Buf x : passes_.between_blocks()) {
      homes[b_.program().root(x).id] = offload.home(offload.inputs);
    }
    return homes;
  }

  void declare_results() {
    loss_ = b_.buffer(kLoss, {1});
    const bool makes = spec_.place.last_stage();
    if (makes && !sums_->loss_begins_elsewhere()) b_.emit("loss.zero", Zero{1}, {}, {loss_});
    if (makes && !spec_.place.alone()) losses_ = b_.buffer("losses", {spec_.share().count});
    b_.output(loss_);
    if (!spec_.update) {
      output_ = b_.buffer(kOutput, output_shape(config_, spec_.batch));
      b_.output(output_);
      return;
    }
    update_.declare([&](const ParamSpec& spec) { return sums_->owns(spec); });
  }

  // Losses are told the first time.
  void pass() {
    passes_.run({loss_, losses_, output_});
    if (spec_.update && !releases()) b_.mark();  // the update's
    if (!spec_.place.alone() && !std::exchange(losses_summed_, true)) sum_losses();
    if (summed()) sums_->finish();
  }

  // ---- update ----------------------------------------------------------------------------------

  // Global norm, clip factor, AdamW and EMA of every trained tensor that is this rank's.
  void update() {
    const auto each = [&](auto body) {
      for (const ParamSpec& spec : specs_) {
        if (!spec.trained() || !sums_->owns(spec)) continue;
        body(spec, summed() ? sums_->whole(spec) : params_.gradient(b_, spec.name));
      }
    };
    each([&](const ParamSpec& spec, Buf gradient) {
      if (spec.of_all_heads) sum_heads(spec, gradient);
      update_.norm(spec, gradient);
    });
    clip();
    messages_.wait_for_sends();  // of weights, which are about to change
    each([&](const ParamSpec& spec, Buf gradient) {
      // What is away is fetched while others are updated.
      if (choices_.offload.takes(spec, Purpose::moment)) b_.cut();
      apply(spec, gradient);
    });
  }

  // Of what the heads share, each rank has what its own have added.
  void sum_heads(const ParamSpec& spec, Buf gradient) {
    messages_.wait_for_send_of(gradient);
    peers_.sum(spec.name, gradient);
  }

  void clip() {
    if (spec_.place.pipe > 1 || spec_.place.tensor > 1 || choices_.shard != Shard::off)
      sums_->share_norms(update_.norms());
    update_.clip();
    sums_->clipped(update_.clipping());
  }

  void apply(const ParamSpec& spec, Buf gradient) {
    messages_.wait_for_send_of(params_.weight(spec.name));
    update_.apply(spec, gradient);
  }

  // To the ranks that do not own them, but have them.
  void hand_on_weights() {
    for (const ParamSpec& spec : specs_) {
      const bool own = spec.trained() && spec_.place.has(spec.layer);
      if (choices_.shard != Shard::grads || !own) continue;
      messages_.hand_on(spec.name, params_.weight(spec.name), kWeights, sums_->ring_from(spec));
    }
    messages_.wait_for_sends();
  }

  void sum_losses() {
    if (losses_) {
      const auto weight = static_cast<float>(1.0 / static_cast<double>(spec_.batch));
      sums_->begin_loss(loss_);
      b_.emit("loss.mean", SumLosses{spec_.share().count, weight}, {losses_}, {}, {loss_});
    }
    sums_->share_loss(loss_);
  }

  const DitConfig config_;  // with what this rank has of each block
  const StepSpec& spec_;
  const Choices choices_;
  const std::vector<ParamSpec> specs_;
  Builder b_;
  Messages messages_;
  std::unique_ptr<Sums> sums_;
  Params params_;
  TensorPeers peers_;
  Passes passes_;
  Update update_;
  Buf loss_, output_;  // what the host reads
  Buf losses_;         // of each sample, where ranks add them up
  bool losses_summed_ = false;
};

// Of what is updated in rows.
std::vector<ParamSpec> in_rows(const DitConfig& config, const StepSpec& spec) {
  std::vector<ParamSpec> some;
  for (const ParamSpec& p : parameters(config)) {
    if (spec.choices.storage.in_rows(p) && spec.place.has(p.layer)) some.push_back(p);
  }
  return some;
}

}  // namespace

bool leaves_updates(const DitConfig& config, const StepSpec& spec) {
  return !in_rows(config, spec).empty();
}

Program write_settle(const DitConfig& config, const StepSpec& spec, const Device& device) {
  Builder b(kSettleProgram, device);
  const std::vector<ParamSpec> specs = in_rows(config, spec);
  const Params params(b, specs, spec.choices.storage);
  Update update(b, config, spec, specs, params);
  update.declare_state([](const ParamSpec&) { return true; });
  update.catch_up_all();
  return b.finish();
}

Program write_step(const DitConfig& config, const StepSpec& spec, const Device& device) {
  return StepWriter(config, spec, device).write();
}

}  // namespace ebb
