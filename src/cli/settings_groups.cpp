#include "cli/settings_groups.h"

#include <fmt/format.h>

#include <limits>

#include "train/prune_schedule.h"

namespace ebb {

using List = SettingList;

List group(const char* title, List list) {
  for (Setting& setting : list) setting.group = title;
  return list;
}

Setting class_count() {
  return otherwise(
      fmt::format("as the data has, else {}", kDefaultClasses),
      whole("classes", &Settings::classes, 0, "number of classes, 0 for none", 10'000'000));
}

List model_settings() {
  const auto of_model = [](Setting setting) {
    return otherwise("the model's", std::move(setting));
  };
  return group(
      "the model",
      {
          otherwise(kDefaultModel, text("model", &Settings::model, "NAME",
                                        "DiT-S, -B, -L or -XL, each with /2, /4 or /8: its patch")),
          of_model(whole("width", &Settings::width, 4, "width, a multiple of --heads", 65536)),
          of_model(whole("depth", &Settings::depth, 1, "number of blocks", 1024)),
          of_model(whole("heads", &Settings::heads, 1, "attention heads", 65536)),
          otherwise("all blocks alike",
                    text("shapes", &Settings::shapes, "H:M*N,...",
                         "heads H and MLP width M of N blocks, then of others")),
          of_model(whole("patch", &Settings::patch, 1, "side of a patch, in pixels", 256)),
          otherwise(fmt::format("as the data is, else {}", kDefaultImageSize),
                    whole("image-size", &Settings::image_size, 1,
                          "side of what the network sees; pictures of a folder are brought to it",
                          16384)),
          otherwise(fmt::format("as the data has, else {}", kDefaultChannels),
                    whole("channels", &Settings::channels, 1, "channels of the input", 1024)),
          otherwise(kDefaultObjective,
                    choice("objective", &Settings::objective, "ddpm|flow", "what is learned")),
          on_off("no-learn-sigma", &Settings::no_learn_sigma, "ddpm: predict the noise only"),
          choice("qk-norm", &Settings::qk_norm, "none|layer|rms", "normalise queries and keys"),
          real("density", &Settings::density, 1e-6, 1,
               "share of the linear layers' weights that there are; the others take no memory"),
      });
}

// The model in a file says all of it: these are checked against it.
List grad_model_settings() {
  List list = group("the model, where the file's metadata does not say it", model_settings());
  for (Setting& setting : list) {
    if (!setting.value.empty()) setting.otherwise = "as the file says";
  }
  return list;
}

Setting thread_count() {
  return otherwise("OMP_NUM_THREADS, else all CPUs",
                   whole("threads", &Settings::threads, 1, "threads", 1024));
}

List budget_settings() {
  return group("memory and techniques",
               {
                   otherwise("80 % of what is available",
                             bytes("memory", &Settings::memory,
                                   "what the whole process may use, such as 2G or 512M")),
                   thread_count(),
                   unstored(text("config", &Settings::config, "FILE",
                                 "settings from a TOML file; flags win")),
               });
}

Setting offload_directory() {
  return otherwise("nothing is kept on disk",
                   text("offload", &Settings::offload, "DIR",
                        "a directory on a disk, for what does not fit in memory"));
}

Setting debug_memory() {
  return unstored(on_off("debug-memory", &Settings::debug_memory,
                         "prove what every operation says of its memory; very slow"));
}

// What the planner decides unless the user does.
List technique_settings() {
  List list;
  for (const Technique& t : techniques()) {
    if (t.decide) list.push_back(technique_flag(t));
  }
  list.push_back(otherwise("nothing", allowed_words()));
  list.push_back(offload_directory());
  return group("memory and techniques", list);
}

namespace {

Setting peer_timeout() {
  return unstored(whole("peer-timeout", &Settings::peer_timeout, 1,
                        "seconds after which a silent rank is lost", 86400));
}

}  // namespace

List equal_rank_settings(const char* share) {
  return group("ranks", {unstored(otherwise("one process, or what mpiexec started",
                                            text("ranks", &Settings::ranks, "auto|data=N", share))),
                         peer_timeout()});
}

List rank_settings(const std::string& link) {
  return group(
      "ranks",
      {
          unstored(otherwise("one process, or what mpiexec started",
                             text("ranks", &Settings::ranks, "auto|data=N,pipe=M,tensor=T",
                                  "processes that share the work: N groups that each take a part "
                                  "of every batch, of M stages that each have some of the blocks, "
                                  "of T that each have a part of every one of these; auto: what is "
                                  "fastest within --memory, T only where nothing else fits"))),
          text("sum", &Settings::sum, "chain|tree:S",
               "how gradients are added up: sample by sample, or S parts of the batch in pairs"),
          unstored(otherwise(link, text("link", &Settings::link, "RATE,LATENCY",
                                        "what connects them, in bits a second, such as 1G,50us"))),
          peer_timeout(),
      });
}

Setting exchange_warmup() {
  return otherwise("0; 1000 with onebit",
                   whole("exchange-warmup", &Settings::exchange_warmup, 0,
                         "steps in which --exchange topk and randomk begin with 25 % of the "
                         "numbers, onebit with whole gradients"));
}

Setting batch_size(const char* help) { return whole("batch", &Settings::batch, 1, help, 1 << 20); }

List sampler_settings(const char* steps_name) {
  return group(
      "drawing pictures",
      {
          otherwise("ddim for ddpm, euler for flow",
                    choice("sampler", &Settings::sampler, "ddpm|ddim|euler|heun", "how to draw")),
          whole(steps_name, &Settings::sample_steps, 1, "steps of the sampler", 1000),
          real("guidance", &Settings::guidance, -100, 1000,
               "how strongly to follow the class; 1 is none"),
          on_off("guide-three-channels", &Settings::guide_three_channels,
                 "guide channels 0-2 only, as the reference does"),
          on_off("no-clip", &Settings::no_clip, "do not clamp predicted pixels to [-1, 1]"),
          whole("count", &Settings::count, 1, "samples of each class", 1 << 24),
      });
}

List train_settings() {
  return group(
      "training",
      {
          text("data", &Settings::data, "DIR",
               "a folder of pictures (sub-folders are classes), IDX files, or fast-DiT features"),
          unstored(text("out", &Settings::out, "DIR", "the run's folder")),
          unstored(on_off("resume", &Settings::resume, "go on with the run in --out")),
          unstored(otherwise("the newest",
                             whole("resume-step", &Settings::resume_step, 0,
                                   "go on from the checkpoint of this step", int64_t{1} << 40))),
          unstored(choice("data-changed", &Settings::data_changed, "refuse|accept",
                          "go on with data that is not what the run was trained on")),
          whole("steps", &Settings::steps, 1, "optimizer steps in all", int64_t{1} << 32),
          real("epochs", &Settings::epochs, 1e-6, 1e9, "passes over the data, instead of --steps"),
          real("lr", &Settings::lr, 0, 1000, "learning rate"),
          whole("warmup", &Settings::warmup, 0, "steps over which the rate grows from 0"),
          real("weight-decay", &Settings::weight_decay, 0, 1000,
               "share of each weight, times the rate, that a step takes off"),
          text("betas", &Settings::betas, "B1,B2", "how long moments remember; lion: 0.9,0.99"),
          whole("galore-refresh", &Settings::galore_refresh, 1,
                "updates between two projectors of --galore"),
          real("galore-scale", &Settings::galore_scale, 0, 1000,
               "of a step that --galore has projected"),
          real("clip", &Settings::clip, 0, 1e9, "largest gradient norm; 0 never clips"),
          real("ema", &Settings::ema, 0, 1, "decay of the averaged weights; 0 keeps none"),
          on_off("ema-ramp", &Settings::ema_ramp,
                 "average over the last tenth of the steps until --ema is longer"),
          without("no-ema-ramp", &Settings::ema_ramp,
                  "--ema from the first step on, as the reference does"),
          whole("ema-every", &Settings::ema_every, 1, "steps between averages, of decay^N each"),
          real("label-drop", &Settings::label_drop, 0, 1, "share of labels dropped, for guidance"),
          choice("time-sampling", &Settings::time_sampling, "uniform|logit-normal",
                 "how flow draws its times"),
          choice("flip", &Settings::flip, "auto|on|off",
                 "mirror half of the samples; auto: only image folders"),
          whole("loader-threads", &Settings::loader_threads, 1, "threads that decode data", 256),
          whole("seed", &Settings::seed, 0, "of everything random",
                std::numeric_limits<int64_t>::max()),
      });
}

List pruning_settings() {
  return group(
      "pruning while training",
      {
          real("l1", &Settings::l1, 0, 1000,
               "penalty that shrinks each weight of the linear layers towards zero"),
          real("group-lasso", &Settings::group_lasso, 0, 1000,
               "penalty that shrinks whole heads and MLP units"),
          otherwise("nothing is pruned",
                    share("prune-to", &Settings::prune_to,
                          "share of each block's heads and MLP units that is gone at the end")),
          whole("prune-begin", &Settings::prune_begin, 0,
                "the step before which all is there: the first event is --prune-every later"),
          whole("prune-end", &Settings::prune_end, 1, "the step by which the last event is"),
          whole("prune-every", &Settings::prune_every, 1, "steps between events"),
          otherwise("l2", choice("prune-by", &Settings::prune_by, kEventScoreWords,
                                 "what matters least, as `ebb prune --by` has it")),
      });
}

List record_settings() {
  return group(
      "what a run writes",
      {
          whole("save-every", &Settings::save_every, 0, "steps between checkpoints; 0 never saves"),
          whole("keep", &Settings::keep, 0, "newest checkpoints kept; 0 keeps all"),
          whole("sample-every", &Settings::sample_every, 0, "steps between pictures; 0 draws none"),
          otherwise("8, spread over all", text("sample-classes", &Settings::sample_classes, "A,B,C",
                                               "classes of those pictures, by number or name")),
          whole("log-every", &Settings::log_every, 0, "steps between lines when not on a terminal"),
      });
}

Setting machine_file() {
  return unstored(otherwise("this one", text("machine", &Settings::machine, "FILE",
                                             "the machine to plan for, as `ebb machine --json` "
                                             "describes it")));
}

Setting json() { return unstored(on_off("json", &Settings::json, "one JSON object on stdout")); }

List prune_settings() {
  return group(
      "what to remove",
      {
          text("from", &Settings::from, "RUN", "a run's folder, or a checkpoint"),
          text("out", &Settings::out, "FILE", "the pruned checkpoint goes here"),
          amount("heads", &Settings::prune_heads,
                 "attention heads of each block: a share in (0,1), or a number"),
          amount("mlp", &Settings::prune_mlp, "MLP units of each block, likewise"),
          amount("blocks", &Settings::prune_blocks,
                 "whole blocks; the first and the last stay; they go before all else"),
          amount("weights", &Settings::prune_weights,
                 "single weights of each matrix, by magnitude: a share, or a number"),
          whole("params", &Settings::params, 1,
                "go on removing heads and MLP units until at most N parameters are left",
                int64_t{1} << 44),
          choice("by", &Settings::by, kScoreWords,
                 "what matters least: by norm of the weights, by the optimizer's second moments, "
                 "from data, or at random"),
          text("data", &Settings::data, "DIR",
               "what taylor, activation and fluctuation look at, as `ebb train` takes it"),
          whole("samples", &Settings::samples, 1, "of it; more than 32 in whole batches of 32",
                1 << 24),
          on_off("no-compensation", &Settings::no_compensation,
                 "fluctuation: biases do not make up for the mean of what goes"),
          choice("scope", &Settings::scope, "block|model",
                 "compare within each block, or over the model"),
          text("mask", &Settings::mask, "FILE",
               "your own choice: safetensors of 0 and 1 (1 stays) named blocks, heads.I, mlp.I"),
          whole("seed", &Settings::seed, 0, "of --by random, or of which samples and their noise",
                std::numeric_limits<int64_t>::max()),
          on_off("fresh", &Settings::fresh, "the optimizer starts anew: moments of zero"),
          on_off("dry-run", &Settings::dry_run,
                 "show what would go, and what training it would take; write nothing"),
          json(),
      });
}

}  // namespace ebb
