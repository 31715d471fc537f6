#include "model/step.h"

namespace ebb {

namespace {

class StepWriter {
 public:
  StepWriter(const DitConfig& config, const StepSpec& spec, const Device& device)
      : config_(config),
        spec_(spec),
        specs_(parameters(config)),
        b_("step", device),
        params_(b_, specs_),
        image_({spec.batch, config.channels, config.image_size, config.image_size}) {}

  Program write() {
    declare_batch();
    const Dit model(config_, spec_.batch, params_);
    const DitSaved saved = model.forward(b_, xt_, t_, y_);
    model.backward(b_, saved, loss(saved.output));
    if (spec_.update) {
      update();
    } else {
      b_.output(saved.output);
      for (const ParamSpec& spec : specs_) {
        if (spec.trained()) b_.output(params_.gradient(b_, spec.name));
      }
    }
    return b_.finish();
  }

 private:
  Buf host_input(const char* name, Shape shape, DType type = DType::f32) {
    const Buf made = b_.buffer(name, std::move(shape), Purpose::data, type);
    b_.input(made);
    return made;
  }

  // x, noise, t and y of the batch, and the noised input xt.
  void declare_batch() {
    const int64_t B = spec_.batch;
    const int64_t n = config_.channels * config_.pixels();
    if (spec_.loader_bytes > 0) {
      b_.declare({kLoaderMemory, "data", Purpose::data, DType::u8, {spec_.loader_bytes}, true});
    }
    x_ = host_input(kBatchX, image_);
    if (config_.classes > 0) y_ = host_input(kBatchY, {B}, DType::i32);
    if (spec_.given_noise) {
      noise_ = host_input(kBatchNoise, image_);
      t_ = host_input(kBatchTime, {B});
    } else {
      noise_ = b_.buffer(kBatchNoise, image_);
      b_.emit("noise", FillNormal{B, n, Stream::noise}, {}, {noise_});
      t_ = b_.buffer(kBatchTime, {B});
      b_.emit("times", DrawTimes{B, config_.objective, spec_.time_sampling}, {}, {t_});
      if (y_ && spec_.label_drop > 0) {
        const Buf dropped = b_.buffer("batch.y_dropped", {B}, Purpose::data, DType::i32);
        b_.emit("drop_labels", DropLabels{B, config_.null_label(), spec_.label_drop}, {y_},
                {dropped});
        y_ = dropped;
      }
    }
    xt_ = b_.buffer("batch.xt", image_);
    b_.emit("diffuse", Diffuse{B, n, config_.objective}, {x_, noise_, t_}, {xt_});
  }

  // Emits the loss of the mean sample; returns its gradient by the network's output.
  Buf loss(Buf output) {
    const int64_t B = spec_.batch;
    const auto weight = static_cast<float>(1.0 / static_cast<double>(B));
    const Buf losses = b_.buffer("losses", {B});
    const Buf doutput = b_.buffer("d.output", b_.shape(output));
    if (config_.objective == Objective::ddpm) {
      b_.emit("loss.ddpm",
              DdpmLoss{B, config_.channels, config_.pixels(), config_.learn_sigma, weight},
              {output, x_, noise_, xt_, t_}, {losses, doutput});
    } else {
      b_.emit("loss.flow",
              FlowLoss{B, config_.channels, config_.pixels(), config_.learn_sigma, weight},
              {output, x_, noise_}, {losses, doutput});
    }
    const Buf total = b_.buffer(kLoss, {1});
    b_.emit("loss.zero", Zero{1}, {}, {total});
    b_.emit("loss.mean", SumLosses{B, weight}, {losses}, {}, {total});
    b_.output(total);
    return doutput;
  }

  // Global norm, clip factor, AdamW and EMA of every trained tensor.
  void update() {
    int64_t trained = 0;
    for (const ParamSpec& spec : specs_) trained += spec.trained();
    const Buf norms = b_.buffer(kNorms, {trained}, Purpose::activation, DType::f64);
    const Buf clip = b_.buffer(kClip, {2});
    b_.output(norms);
    b_.output(clip);
    int64_t slot = 0;
    for (const ParamSpec& spec : specs_) {
      if (!spec.trained()) continue;
      b_.emit("norm." + spec.name, SquaredNorm{element_count(spec.shape), slot++},
              {params_.gradient(b_, spec.name)}, {norms});
    }
    b_.emit("clip", ClipScale{trained, spec_.clip}, {norms}, {clip});
    for (const ParamSpec& spec : specs_) {
      if (spec.trained()) update_tensor(spec, clip);
    }
  }

  void update_tensor(const ParamSpec& spec, Buf clip) {
    const auto state = [&](const char* prefix, Purpose purpose) {
      return b_.declare({prefix + spec.name, spec.layer, purpose, DType::f32, spec.shape, true});
    };
    std::vector<Buf> updates = {params_.weight(spec.name), state("m.", Purpose::moment),
                                state("v.", Purpose::moment)};
    if (spec_.ema) updates.push_back(state("ema.", Purpose::ema));
    b_.emit("adamw." + spec.name,
            AdamW{element_count(spec.shape), spec_.beta1, spec_.beta2, spec_.eps,
                  spec_.weight_decay, spec_.ema},
            {params_.gradient(b_, spec.name), clip}, {}, updates);
  }

  const DitConfig& config_;
  const StepSpec& spec_;
  const std::vector<ParamSpec> specs_;
  Builder b_;
  Params params_;
  const Shape image_;
  Buf x_, y_, noise_, t_, xt_;
};

}  // namespace

Program write_step(const DitConfig& config, const StepSpec& spec, const Device& device) {
  return StepWriter(config, spec, device).write();
}

}  // namespace ebb
