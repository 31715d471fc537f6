#include "cli/resolve.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <optional>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/checkpoint_of.h"
#include "cli/classes.h"
#include "formats/pruned_json.h"
#include "model/optimizer.h"
#include "run/disk_store.h"
#include "state/checkpoint.h"

namespace ebb {

namespace {

void warn(const std::string& line) { fmt::print(stderr, "warning: {}\n", line); }

Model model_in(const Settings& s) {
  Model m;
  m.name = s.model;
  m.width = s.width;
  m.depth = s.depth;
  m.heads = s.heads;
  m.patch = s.patch;
  m.image_size = s.image_size;
  m.channels = s.channels;
  m.classes = s.classes;
  m.objective = s.objective;
  m.learn_sigma = !s.no_learn_sigma;
  m.qk_norm = s.qk_norm;
  m.density = s.density;
  if (s.shapes.empty()) return m;
  const std::string where = s.has("shapes") ? s.given.at("shapes") : "--shapes";
  for (const BlockShape& shape : parse_shapes(s.shapes, where)) {
    m.blocks.push_back({shape.heads, shape.mlp});
  }
  return m;
}

// As the user gave them; otherwise the optimizer's own, which the settings then name.
std::optional<std::array<double, 2>> betas_in(Settings& s) {
  const OptimizerKind& optimizer =
      optimizers()[static_cast<size_t>(s.decisions.optimizer.value_or(Optimizer::adamw))];
  const bool given = s.has("betas");
  if (!given) s.betas = fmt::format("{},{}", optimizer.beta1, optimizer.beta2);
  // The record of a run that is gone on with has them as they were, also where there are none.
  if (!given || (s.goes_on() && optimizer.beta2 == 0)) return std::nullopt;
  if (optimizer.beta2 == 0) return std::array{0.0, 0.0};  // which is refused, whatever they are
  const auto betas = split(s.betas, ',');
  if (betas.size() != 2) {
    fail(Exit::usage, fmt::format("--betas: found '{}', wanted two numbers such as 0.9,0.999",
                                  printable(s.betas)));
  }
  return std::array{parse_real(betas[0], "--betas"), parse_real(betas[1], "--betas")};
}

Training training_in(Settings& s) {
  Training t;
  t.batch = s.batch;
  t.lr = s.lr;
  t.warmup = s.warmup;
  t.weight_decay = s.weight_decay;
  t.betas = betas_in(s);
  // That the record of a run says how it would have projected is no wish.
  if (s.said("galore-refresh") || s.decisions.projects()) t.galore_refresh = s.galore_refresh;
  if (s.said("galore-scale") || s.decisions.projects()) t.galore_scale = s.galore_scale;
  t.l1 = s.l1;
  t.group_lasso = s.group_lasso;
  t.clip = s.clip;
  t.ema = s.ema;
  t.ema_ramp = s.ema_ramp;
  t.ema_every = s.ema_every;
  t.label_drop = s.label_drop;
  t.time_sampling = s.time_sampling;
  if (s.flip != "auto") t.flip = s.flip == "on";
  t.loader_threads = s.loader_threads;
  t.seed = s.seed;
  return t;
}

// Every part of it, or nothing.
std::optional<PruneSchedule> pruning_in(const Settings& s, const TrainOptions& o) {
  if (s.prune_to == 0) {
    const std::pair<const char*, bool> parts[] = {{"prune-begin", s.prune_begin != 0},
                                                  {"prune-end", s.prune_end != 0},
                                                  {"prune-every", s.prune_every != 0},
                                                  {"prune-by", !s.prune_by.empty()}};
    for (const auto& [name, given] : parts) {
      if (!given) continue;
      fail(Exit::usage,
           fmt::format("{}: only pruning while training has a use for it", s.given.at(name)),
           "give --prune-to too, or leave it out");
    }
    return std::nullopt;
  }
  for (const char* name : {"prune-end", "prune-every"}) {
    if (s.has(name)) continue;
    fail(Exit::usage, fmt::format("--prune-to: --{} is missing", name),
         "4 to 8 events are usual: --prune-to 0.5 --prune-begin 1000 --prune-end 7000 "
         "--prune-every 1000");
  }
  PruneSchedule schedule{s.prune_to, s.prune_begin, s.prune_end, s.prune_every,
                         s.prune_by.empty() ? ScoreBy::l2 : parse_score(s.prune_by)};
  if (schedule.end <= schedule.begin) {
    fail(Exit::usage, fmt::format("--prune-end: found {}, wanted more than --prune-begin {}",
                                  schedule.end, schedule.begin));
  }
  if (schedule.events() < 1) {
    fail(Exit::usage,
         fmt::format("--prune-every: found {}, wanted at most the {} steps from --prune-begin to "
                     "--prune-end",
                     schedule.every, schedule.end - schedule.begin));
  }
  if (o.save_every == 0) {
    fail(Exit::usage, "--save-every 0 contradicts --prune-to: what is pruned is a checkpoint",
         "leave --save-every out");
  }
  if (schedule.by == ScoreBy::fisher && o.step.optimizer == Optimizer::lion) {
    fail(Exit::usage,
         "--prune-by fisher contradicts --optimizer lion, which keeps no second moments",
         "choose --prune-by l2");
  }
  if (o.decisions.projects()) {
    fail(Exit::usage,
         fmt::format(
             "--prune-to contradicts --{}: what is left of a matrix may have another shorter "
             "side, or no more directions than its moments",
             o.decisions.galore_rank ? "galore" : "allow galore"),
         "leave one of them out, or prune checkpoints with `ebb prune`");
  }
  return schedule;
}

constexpr int64_t kSignsWarmup = 1000;

// A record of the run has it too where it has come to no use: then it is no wish.
void resolve_exchange_warmup(Settings& s) {
  Decisions& d = s.decisions;
  const bool useful = d.exchange ? warms_up(*d.exchange) : d.allows("topk");
  const bool said = s.said("exchange-warmup"), signs = d.exchange && d.exchange->is_signs();
  if (signs && said && s.exchange_warmup == 0) {
    fail(Exit::usage,
         "--exchange-warmup 0 contradicts --exchange onebit: it goes on with the second moments of "
         "the steps before it",
         fmt::format("leave --exchange-warmup out for {} steps", kSignsWarmup));
  }
  // As long as second moments remember, with beta2 0.999.
  if (signs && s.exchange_warmup == 0) s.exchange_warmup = kSignsWarmup;
  d.exchange_warmup = useful || said ? s.exchange_warmup : 0;
  if (d.exchange_warmup == 0 || s.save_every > 0) return;
  fail(Exit::usage,
       "--save-every 0 contradicts --exchange-warmup: from one code to the next a run goes by a "
       "checkpoint",
       "leave --save-every out");
}

}  // namespace

Data resolve_data(const Settings& s, const std::string& path, int64_t budget, bool verify) {
  Data::Options options;
  options.image_size = s.image_size;
  options.channels = s.channels;
  options.memory_limit = budget / 2;
  options.verify = verify;
  return Data::open(path, options);
}

DitConfig resolve_model(Settings& s, const DataInfo* data) {
  Model m = model_in(s);
  const DitConfig config =
      resolve(m, data, s.has("model") ? s.given.at("model") : "--model", printable(s.data));
  s.model = m.name;
  s.width = m.width;
  s.depth = m.depth;
  s.heads = m.heads;
  s.patch = m.patch;
  s.image_size = m.image_size;
  s.channels = m.channels;
  s.classes = m.classes;
  s.objective = m.objective;
  s.no_learn_sigma = !m.learn_sigma;
  return config;
}

void say_default_model(const Settings& s) {
  if (s.has("model") || s.has("width")) return;
  fmt::print("--model is not given: {} is taken; smaller and larger ones: ebb {} --help\n", s.model,
             s.verb);
}

std::string model_label(const Settings& s, const DitConfig& c) { return label_of(model_in(s), c); }

Drawing drawing_in(const Settings& s) {
  Drawing d;
  d.sampler = s.sampler;
  d.steps = s.sample_steps;
  d.guidance = s.guidance;
  d.guide_three_channels = s.guide_three_channels;
  d.clip = !s.no_clip;
  d.average = s.weights != "raw";
  return d;
}

std::filesystem::path resolve_offload(const Settings& s) {
  const std::filesystem::path directory = s.offload;
  if (directory.empty()) return {};
  check_offload(directory);
  if (is_in_memory(directory)) {
    warn(fmt::format("--offload: files in {} are memory themselves, and not in the budget",
                     printable(s.offload)));
  }
  return directory;
}

void settle(Settings& s, const PlannedRun& planned) {
  settle(s.decisions, planned.step.choices);
  // The plan is of one phase; the run is on its way to the last.
  if (!planned.phases.empty()) s.decisions.exchange = parse_exchange(planned.phases.back().code);
}

TrainOptions resolve_training(Settings& s, const DitConfig& config, const DataInfo* data) {
  resolve_exchange_warmup(s);
  TrainOptions o = resolve(training_in(s), s.decisions, config, data);
  o.out = s.out;
  o.name = model_label(s, config);
  o.steps = s.steps;
  if (o.steps == 0 && s.epochs > 0 && data != nullptr) {
    o.steps = static_cast<int64_t>(
        std::ceil(s.epochs * static_cast<double>(data->count) / static_cast<double>(s.batch)));
  }
  o.save_every = s.save_every;
  o.sample_every = s.sample_every;
  o.log_every = s.log_every;
  o.keep = s.keep;
  o.debug_memory = s.debug_memory;
  o.resume = s.resume;
  if (!s.begin_from.empty()) o.from = checkpoint_of(s.begin_from);
  // Whoever begins with a checkpoint on data that it was not trained on says so by naming it.
  o.accept_changed_data = s.data_changed == "accept" || (!o.from.empty() && s.said("data"));
  if (s.has("resume-step")) o.resume_step = s.resume_step;
  const auto of_use = [&](const char* name, bool used, const char* who) {
    if (!s.has(name) || used) return;
    fail(Exit::usage, fmt::format("{}: only {} has a use for it", s.given.at(name), who),
         "give --resume too, or leave it out");
  };
  of_use("resume-step", s.resume, "a resumed run");
  of_use("data-changed", s.resume || !o.from.empty(), "a run that goes on with another");
  o.pruning = pruning_in(s, o);
  if (o.pruning) o.pruned_bytes = most_pruned_bytes(config);
  if (o.sample_every > 0) {
    o.sampler = resolve(drawing_in(s), config, data == nullptr || data->pixels);
    if (!o.step.ema) o.sampler->weights_prefix = "";
    constexpr int64_t kMostClasses = 8, kMostTogether = 64;
    static const std::vector<std::string> kNoNames;
    o.sample_classes =
        s.sample_classes.empty()
            ? spread_classes(config.classes, kMostClasses)
            : parse_classes(s.sample_classes,
                            s.has("sample-classes") ? s.given.at("sample-classes") : "",
                            config.classes, data != nullptr ? data->class_names : kNoNames);
    o.samples_each = s.count;
    o.sampler->batch = std::min(std::ssize(o.sample_classes) * s.count, kMostTogether);
  }
  return o;
}

PicturesGiven pictures_given(const Settings& s) {
  return {s.has("sample-classes"), s.has("count")};
}

void settle_pictures(Settings& s, const TrainOptions& options) {
  s.sample_every = options.sample_every;
  if (options.sample_every == 0) return;
  s.count = options.samples_each;
  s.sample_classes = fmt::format("{}", fmt::join(options.sample_classes, ","));
}

}  // namespace ebb
