#include "train/train_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/data_json.h"
#include "state/checkpoint.h"
#include "train/prune_event.h"

namespace ebb {

Loader::Options loader_options(const TrainOptions& o, const Source& source) {
  // As many as the first rank has, which has most: every rank plans for all, and must come to the
  // same.
  RankPlace first = o.step.place;
  first.rank = 0;
  const int64_t ahead = first.share(o.step.batch).count;
  return {o.seed, o.step.batch, o.loader_threads,
          Loader::worth_ahead(source, ahead, o.loader_threads), o.step.share()};
}

OutputSpec sample_output(const TrainOptions& o, const Source& source, int64_t step) {
  OutputSpec spec{o.out / "samples" / fmt::format("step-{:09}.png", step), o.config,
                  source.info().pixels, o.sample_classes, o.samples_each};
  name_classes(spec, source.info().class_names);
  return spec;
}

namespace {

// Of a text while a checkpoint is written: as it is, quoted, hashed, in the header.
constexpr int64_t kTextCopies = 8;

int64_t names_bytes(const DataInfo& info) {
  constexpr int64_t kBesideName = 24;
  int64_t bytes = 0;
  for (const std::string& name : info.class_names) bytes += kBesideName + std::ssize(name);
  return kTextCopies * std::min<int64_t>(bytes, kMostRecordBytes);
}

}  // namespace

RunSpec run_spec(const TrainOptions& o, const Source* source) {
  RunSpec spec{o.name, o.config, o.step, o.sampler, o.decisions, o.budget_bytes};
  if (o.save_every > 0 || o.resume || !o.from.empty()) {
    spec.held_bytes = checkpoint_heap_bytes(o.config, o.step, o.decisions.projects()) +
                      kTextCopies * o.pruned_bytes;
  }
  if (o.pruning) spec.apart_bytes = kEventBytes;
  if (source == nullptr) return spec;
  spec.step.feeding = {true, source->info().type, o.flip,
                       Loader::memory_bytes(*source, loader_options(o, *source))};
  spec.data_bytes = source->held_bytes();
  spec.held_bytes += o.loader_threads * source->heap_bytes();
  spec.held_bytes += names_bytes(source->info());
  if (o.sample_every > 0) spec.held_bytes += sample_output(o, *source, 0).held_bytes();
  return spec;
}

Scalars step_scalars(const TrainOptions& o, int64_t k, int64_t updates) {
  const auto n = static_cast<double>(k + 1);
  const auto update = static_cast<double>(updates + 1);
  Scalars s;
  s.seed = o.seed;
  s.step = k;
  const double share = o.warmup > 0 ? std::min(1.0, n / static_cast<double>(o.warmup)) : 1.0;
  s.lr = static_cast<float>(o.lr * share);
  s.bias1 = static_cast<float>(1 - std::pow(o.step.beta1, update));
  s.bias2 = static_cast<float>(1 - std::pow(o.step.beta2, update));
  s.update = update;
  s.ema_decay = average_decay(o.average, k);
  return s;
}

}  // namespace ebb
