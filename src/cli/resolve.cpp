#include "cli/resolve.h"

#include <fmt/ranges.h>

#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "cli/classes.h"
#include "formats/model_json.h"
#include "model/optimizer.h"
#include "run/disk_store.h"
#include "state/checkpoint.h"

namespace ebb {

namespace {

void warn(const std::string& line) { fmt::print(stderr, "warning: {}\n", line); }

// A size that the data fixes: what the user gave must agree with it.
void agree(int64_t& given, int64_t found, const char* flag, int64_t unset) {
  if (given != unset && given != found) {
    fail(Exit::usage, fmt::format("{}: found {}, but the data has {}", flag, given, found),
         fmt::format("leave {} out", flag));
  }
  given = found;
}

// The network sees squares.
void check_square(const Settings& s, const DataInfo& data) {
  if (data.height == data.width) return;
  fail(Exit::data,
       fmt::format("{}: found samples of {}x{}x{} (channels, height, width), wanted square ones, "
                   "such as {}x{}x{}",
                   printable(s.data), data.channels, data.height, data.width, data.channels,
                   std::min(data.height, data.width), std::min(data.height, data.width)),
       data.pixels ? fmt::format("--image-size {} scales the shorter side to that and crops the "
                                 "centre",
                                 std::min(data.height, data.width))
                   : "extract the features from square images");
}

}  // namespace

SourceOptions resolve_source(const Settings& s, int64_t budget) {
  SourceOptions options;
  options.image_size = s.image_size;
  options.channels = static_cast<int>(s.channels);
  options.memory_limit = budget / 2;
  return options;
}

DitConfig resolve_model(Settings& s, const DataInfo* data) {
  if (s.model.empty() && s.width == 0) s.model = kDefaultModel;
  if (!s.model.empty()) {
    const NamedSize size = named_size(s.model, s.has("model") ? s.given.at("model") : "--model");
    if (s.width == 0) s.width = size.width;
    if (s.depth == 0) s.depth = size.depth;
    if (s.heads == 0) s.heads = size.heads;
    if (s.patch == 0) s.patch = size.patch;
  }
  if (s.depth == 0 || s.heads == 0 || s.patch == 0) {
    fail(Exit::usage, "--width: without --model, --depth, --heads and --patch are needed too");
  }
  if (data != nullptr) {
    check_square(s, *data);
    agree(s.image_size, data->height, "--image-size", 0);
    agree(s.channels, data->channels, "--channels", 0);
    if (s.classes < 0) s.classes = data->classes;
    if (s.classes != 0 && s.classes < data->classes) {
      fail(Exit::usage,
           fmt::format("--classes: found {}, but the data has labels up to {}", s.classes,
                       data->classes - 1),
           "leave --classes out, or --classes 0 to train without labels");
    }
  }
  if (s.image_size == 0) s.image_size = kDefaultImageSize;
  if (s.channels == 0) s.channels = kDefaultChannels;
  if (s.classes < 0) s.classes = kDefaultClasses;
  if (s.objective.empty()) s.objective = kDefaultObjective;
  DitConfig c;
  c.objective = parse_objective(s.objective, "--objective", Exit::usage);
  // Flow has no variance to learn.
  if (c.objective == Objective::flow) s.no_learn_sigma = true;
  c.learn_sigma = !s.no_learn_sigma;
  c.qk_norm = parse_qk_norm(s.qk_norm, "--qk-norm", Exit::usage);
  c.width = s.width;
  c.patch = s.patch;
  c.image_size = s.image_size;
  c.channels = s.channels;
  c.classes = s.classes;
  set_blocks(c, s.depth, s.heads);
  validate(c);
  return c;
}

void say_default_model(const Settings& s) {
  if (s.has("model") || s.has("width")) return;
  fmt::print("--model is not given: {} is taken; smaller and larger ones: ebb {} --help\n", s.model,
             s.verb);
}

std::filesystem::path checkpoint_of(const std::string& from) {
  std::error_code ignored;
  if (!std::filesystem::exists(from, ignored)) {
    fail(Exit::disk, fmt::format("--from: {} does not exist", printable(from)),
         "give a run's folder");
  }
  if (!std::filesystem::is_directory(from, ignored)) return from;
  if (const auto newest = newest_checkpoint(from)) return *newest;
  const std::filesystem::path folder = std::filesystem::path(from) / "checkpoints";
  fail(Exit::disk, fmt::format("--from: no checkpoint in {}", printable(folder.string())),
       "train with --save-every, or give the checkpoint's file");
}

std::string model_label(const Settings& s, const DitConfig& c) {
  if (!s.model.empty()) {
    const NamedSize size = named_size(s.model, "--model");
    if (size.width == c.width && size.depth == c.depth() && size.patch == c.patch) return s.model;
  }
  return fmt::format("DiT {}x{}/{}", c.width, c.depth(), c.patch);
}

SamplerSpec resolve_sampler(const Settings& s, const DitConfig& c, bool pixels) {
  SamplerSpec spec;
  spec.kind = !s.sampler.empty()               ? parse_sampler(s.sampler)
              : c.objective == Objective::flow ? SamplerKind::euler
                                               : SamplerKind::ddim;
  spec.steps = static_cast<int>(s.sample_steps);
  spec.guidance = c.classes > 0 ? static_cast<float>(s.guidance) : 1.0f;
  spec.guide_three_channels = s.guide_three_channels;
  spec.clip = pixels && !s.no_clip && c.objective == Objective::ddpm;
  validate(spec, c);
  return spec;
}

std::filesystem::path resolve_offload(const Settings& s) {
  if (s.offload.empty()) return {};
  std::error_code ignored;
  const std::filesystem::path directory = s.offload;
  if (!std::filesystem::is_directory(directory, ignored)) {
    fail(Exit::disk, fmt::format("--offload: {} is not a directory", printable(s.offload)),
         "make it first, on a disk with room");
  }
  if (is_in_memory(directory)) {
    warn(fmt::format("--offload: files in {} are memory themselves, and not in the budget",
                     printable(s.offload)));
  }
  return directory;
}

void settle(Settings& s, const Choices& choices) {
  for (const Technique& t : techniques()) {
    if (t.settle) t.settle(s.decisions, choices);
  }
}

TrainOptions resolve_training(Settings& s, const DitConfig& config, const DataInfo* data) {
  TrainOptions o;
  o.out = s.out;
  o.config = config;
  o.name = model_label(s, config);
  o.step.batch = s.batch;
  o.step.ema = s.ema > 0;
  o.step.label_drop = static_cast<float>(s.label_drop);
  o.step.time_sampling =
      s.time_sampling == "uniform" ? TimeSampling::uniform : TimeSampling::logit_normal;
  o.step.weight_decay = s.weight_decay;
  o.step.clip = static_cast<float>(s.clip);
  o.step.optimizer = s.decisions.optimizer.value_or(Optimizer::adamw);
  const OptimizerKind& optimizer = optimizers()[static_cast<size_t>(o.step.optimizer)];
  // A resumed run's record has them as they were.
  if (s.has("betas") && optimizer.beta2 == 0 && !s.resume) {
    fail(Exit::usage,
         fmt::format("--betas contradicts --optimizer {}, which has none", optimizer.name),
         "leave --betas out");
  }
  if (!s.has("betas")) s.betas = fmt::format("{},{}", optimizer.beta1, optimizer.beta2);
  const auto betas = split(s.betas, ',');
  if (betas.size() != 2) {
    fail(Exit::usage, fmt::format("--betas: found '{}', wanted two numbers such as 0.9,0.999",
                                  printable(s.betas)));
  }
  o.step.beta1 = parse_real(betas[0], "--betas");
  o.step.beta2 = parse_real(betas[1], "--betas");
  for (const double beta : {o.step.beta1, o.step.beta2}) {
    if (beta < 0 || beta >= 1) {
      fail(Exit::usage, fmt::format("--betas: found {}, wanted 0 to below 1", beta));
    }
  }
  o.decisions = s.decisions;
  o.steps = s.steps;
  if (o.steps == 0 && s.epochs > 0 && data != nullptr) {
    o.steps = static_cast<int64_t>(
        std::ceil(s.epochs * static_cast<double>(data->count) / static_cast<double>(s.batch)));
  }
  o.lr = s.lr;
  o.warmup = s.warmup;
  o.average = {s.ema, s.ema_ramp, s.ema_every};
  o.seed = static_cast<uint64_t>(s.seed);
  o.save_every = s.save_every;
  o.sample_every = s.sample_every;
  o.log_every = s.log_every;
  o.keep = s.keep;
  o.flip = s.flip == "on" || (s.flip == "auto" && data != nullptr && data->kind == "images");
  if (o.flip && data != nullptr && !data->pixels) {
    fail(Exit::usage,
         "--flip on: the data is features, wanted pictures: features of a mirrored "
         "picture are not those of the picture, mirrored",
         "leave --flip out");
  }
  o.loader_threads = static_cast<int>(s.loader_threads);
  o.debug_memory = s.debug_memory;
  o.resume = s.resume;
  o.accept_changed_data = s.data_changed == "accept";
  if (s.has("resume-step")) o.resume_step = s.resume_step;
  for (const char* name : {"resume-step", "data-changed"}) {
    if (!s.has(name) || s.resume) continue;
    fail(Exit::usage, fmt::format("{}: only a resumed run has a use for it", s.given.at(name)),
         "give --resume too, or leave it out");
  }
  if (o.sample_every > 0) {
    o.sampler = resolve_sampler(s, config, data == nullptr || data->pixels);
    if (!o.step.ema) o.sampler.weights_prefix = "";
    constexpr int64_t kMostClasses = 8, kMostTogether = 64;
    static const std::vector<std::string> kNoNames;
    o.sample_classes =
        s.sample_classes.empty()
            ? spread_classes(config.classes, kMostClasses)
            : parse_classes(s.sample_classes,
                            s.has("sample-classes") ? s.given.at("sample-classes") : "",
                            config.classes, data != nullptr ? data->class_names : kNoNames);
    o.samples_each = s.count;
    o.sampler.batch = std::min(std::ssize(o.sample_classes) * s.count, kMostTogether);
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
