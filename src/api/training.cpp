#include <ebb/training.h>

#include <fmt/format.h>

#include <limits>

#include "api/resolve.h"
#include "base/error.h"
#include "model/optimizer.h"

namespace ebb {

namespace {

template <typename T>
void within(const char* flag, T value, T low, T high) {
  if (value >= low && value <= high) return;  // so that NaN is not
  fail(Exit::usage, fmt::format("{}: found {}, wanted {} to {}", flag, value, low, high));
}

void set_betas(StepSpec& step, const Training& t) {
  const OptimizerKind& optimizer = optimizers()[static_cast<size_t>(step.optimizer)];
  step.beta1 = optimizer.beta1;
  step.beta2 = optimizer.beta2;
  if (!t.betas) return;
  if (optimizer.beta2 == 0) {
    fail(Exit::usage,
         fmt::format("--betas contradicts --optimizer {}, which has none", optimizer.name),
         "leave --betas out");
  }
  for (const double beta : *t.betas) {
    if (!(beta >= 0 && beta < 1)) {
      fail(Exit::usage, fmt::format("--betas: found {}, wanted 0 to below 1", beta));
    }
  }
  step.beta1 = (*t.betas)[0];
  step.beta2 = (*t.betas)[1];
}

// What only moments in a small space have a use for is of no use without them.
void set_galore(StepSpec& step, const Training& t, const Decisions& decisions) {
  step.galore_refresh = t.galore_refresh;
  step.galore_scale = t.galore_scale;
  const auto refuse_unused = [&](const char* flag, bool given) {
    if (!given || decisions.projects() || decisions.allows("galore")) return;
    fail(Exit::usage, fmt::format("{}: without --galore there is no projector", flag),
         "give --galore on or --allow galore too, or leave it out");
  };
  refuse_unused("--galore-refresh", t.galore_refresh != Training{}.galore_refresh);
  refuse_unused("--galore-scale", t.galore_scale != Training{}.galore_scale);
  if (decisions.galore_rank || !decisions.projects() || step.optimizer == Optimizer::adamw) return;
  fail(Exit::usage,
       fmt::format("--allow galore contradicts --optimizer {}: it is AdamW's two moments that are "
                   "kept in a small space",
                   optimizers()[static_cast<size_t>(step.optimizer)].name),
       "leave one of them out");
}

}  // namespace

void check_ranges(const Training& t) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  within<int64_t>("--batch", t.batch, 1, kMostBatch);
  within<double>("--lr", t.lr, 0, 1000);
  within<int64_t>("--warmup", t.warmup, 0, kMost);
  within<double>("--weight-decay", t.weight_decay, 0, 1000);
  within<int64_t>("--galore-refresh", t.galore_refresh, 1, kMost);
  within<double>("--galore-scale", t.galore_scale, 0, 1000);
  within<double>("--l1", t.l1, 0, 1000);
  within<double>("--group-lasso", t.group_lasso, 0, 1000);
  within<double>("--clip", t.clip, 0, 1e9);
  within<double>("--ema", t.ema, 0, 1);
  within<int64_t>("--ema-every", t.ema_every, 1, kMost);
  within<double>("--label-drop", t.label_drop, 0, 1);
  within<int64_t>("--loader-threads", t.loader_threads, 1, 256);
  within<int64_t>("--seed", t.seed, 0, std::numeric_limits<int64_t>::max());
  if (t.time_sampling != "uniform" && t.time_sampling != "logit-normal") {
    fail(Exit::usage,
         fmt::format("--time-sampling: found '{}', wanted uniform|logit-normal", t.time_sampling));
  }
}

SamplerSpec resolve(const Drawing& d, const DitConfig& config, bool pixels) {
  SamplerSpec spec;
  spec.kind = !d.sampler.empty()                    ? parse_sampler(d.sampler)
              : config.objective == Objective::flow ? SamplerKind::euler
                                                    : SamplerKind::ddim;
  within<int64_t>("--steps", d.steps, 1, 1000);
  within<double>("--guidance", d.guidance, -100, 1000);
  spec.steps = static_cast<int>(d.steps);
  spec.guidance = config.classes > 0 ? static_cast<float>(d.guidance) : 1.0f;
  spec.guide_three_channels = d.guide_three_channels;
  spec.clip = pixels && d.clip && config.objective == Objective::ddpm;
  spec.batch = d.together;
  if (!d.average) spec.weights_prefix = "";
  validate(spec, config);
  return spec;
}

TrainOptions resolve(const Training& t, const Decisions& decisions, const DitConfig& config,
                     const DataInfo* data) {
  TrainOptions o;
  o.config = config;
  o.decisions = decisions;
  o.step.batch = t.batch;
  o.step.ema = t.ema > 0;
  o.step.label_drop = static_cast<float>(t.label_drop);
  o.step.time_sampling =
      t.time_sampling == "uniform" ? TimeSampling::uniform : TimeSampling::logit_normal;
  o.step.weight_decay = t.weight_decay;
  o.step.l1 = t.l1;
  o.step.group_lasso = t.group_lasso;
  if (t.group_lasso > 0 && density_of(config) < 1) {
    fail(Exit::usage,
         fmt::format(
             "--group-lasso contradicts weights that were pruned one by one (density {:.3g})",
             density_of(config)),
         "--l1 goes with them");
  }
  o.step.clip = static_cast<float>(t.clip);
  o.step.optimizer = decisions.optimizer.value_or(Optimizer::adamw);
  set_betas(o.step, t);
  set_galore(o.step, t, decisions);
  o.lr = t.lr;
  o.warmup = t.warmup;
  o.average = {t.ema, t.ema_ramp, t.ema_every};
  o.seed = static_cast<uint64_t>(t.seed);
  o.flip = t.flip.value_or(data != nullptr && data->kind == "images");
  if (o.flip && data != nullptr && !data->pixels) {
    fail(Exit::usage,
         "--flip on: the data is features, wanted pictures: features of a mirrored "
         "picture are not those of the picture, mirrored",
         "leave --flip out");
  }
  o.loader_threads = static_cast<int>(t.loader_threads);
  return o;
}

}  // namespace ebb
