#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cli/setting_kinds.h"

namespace ebb {

namespace {

using List = std::vector<Setting>;

List group(const char* title, List list) {
  for (Setting& setting : list) setting.group = title;
  return list;
}

// ---- the groups, as help shows them ------------------------------------------------------------

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
                          "resume on data that is not what the run was trained on")),
          whole("steps", &Settings::steps, 1, "optimizer steps in all", int64_t{1} << 32),
          real("epochs", &Settings::epochs, 1e-6, 1e9, "passes over the data, instead of --steps"),
          real("lr", &Settings::lr, 0, 1000, "learning rate"),
          whole("warmup", &Settings::warmup, 0, "steps over which the rate grows from 0"),
          real("weight-decay", &Settings::weight_decay, 0, 1000,
               "share of each weight, times the rate, that a step takes off"),
          text("betas", &Settings::betas, "B1,B2", "how long moments remember; lion: 0.9,0.99"),
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

List join(std::initializer_list<List> lists) {
  List all;
  for (const List& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Moves the few that matter to the front, under a heading of their own.
List lead(std::initializer_list<std::string> names, List list) {
  auto front = list.begin();
  for (const std::string& name : names) {
    const auto found = std::find_if(front, list.end(),
                                    [&](const Setting& setting) { return setting.name == name; });
    require(found != list.end(), "no setting {} to lead with", name);
    found->group = "what matters first";
    std::rotate(front, found, found + 1);
    ++front;
  }
  return list;
}

Setting machine_file() {
  return unstored(otherwise("this one", text("machine", &Settings::machine, "FILE",
                                             "the machine to plan for, as `ebb machine --json` "
                                             "describes it")));
}

Setting json() { return unstored(on_off("json", &Settings::json, "one JSON object on stdout")); }

List plan_table() {
  return lead({"model", "batch", "memory", "data", "image-size", "json"},
              join({model_settings(), group("the model", {class_count()}),
                    group("training", {whole_or("max", "batch", &Settings::batch,
                                                "samples of one optimizer step, in all; max: the "
                                                "largest that fits")}),
                    train_settings(), budget_settings(), technique_settings(),
                    group("memory and techniques", {machine_file(), debug_memory()}),
                    record_settings(), sampler_settings("sample-steps"),
                    group("output", {json(), text("csv", &Settings::csv, "FILE",
                                                  "write the place of every buffer here")})}));
}

List train_table() {
  return lead({"data", "out", "steps", "batch", "memory", "model", "image-size", "resume"},
              join({model_settings(), group("the model", {class_count()}),
                    group("training", {batch_size("samples of one optimizer step, in all")}),
                    train_settings(), budget_settings(), technique_settings(),
                    group("memory and techniques", {debug_memory()}), record_settings(),
                    sampler_settings("sample-steps")}));
}

List sample_table() {
  return lead(
      {"from", "out", "classes", "count", "guidance", "steps"},
      join({group("drawing pictures",
                  {text("from", &Settings::from, "RUN", "a run's folder, or a checkpoint"),
                   otherwise("all", text("classes", &Settings::sample_classes, "A,B,C",
                                         "classes to draw, by number or name")),
                   text("out", &Settings::out, "PATH",
                        "a grid .png, a set .npz, raw values .npy, or a folder of PNG files"),
                   choice("weights", &Settings::weights, "ema|raw",
                          "the averaged weights, or those of the last step"),
                   otherwise("what fits, at most 64", whole("batch", &Settings::sample_batch, 1,
                                                            "samples drawn together", 1 << 20)),
                   whole("seed", &Settings::seed, 0, "of the noise",
                         std::numeric_limits<int64_t>::max())}),
            sampler_settings("steps"), budget_settings()}));
}

List grad_table() {
  return lead({"weights", "batch-file", "out"},
              join({{text("weights", &Settings::weights_file, "FILE",
                          "safetensors with the reference's names"),
                     text("batch-file", &Settings::batch_file, "FILE",
                          "safetensors with x, noise, t and y"),
                     text("out", &Settings::out, "FILE", "loss, output and gradients go here")},
                    grad_model_settings(),
                    budget_settings(),
                    technique_settings(),
                    group("memory and techniques", {debug_memory()})}));
}

List bench_table() {
  return lead({"model", "batch", "memory", "json"},
              join({model_settings(),
                    group("the model", {class_count(), batch_size("samples of one step")}),
                    budget_settings(), technique_settings(),
                    group("measuring",
                          {real("clip", &Settings::clip, 0, 1e9, "largest gradient norm"),
                           whole("rounds", &Settings::rounds, 1, "measured rounds", 1000), json(),
                           on_off("profile", &Settings::profile,
                                  "each operation's share, and its rate against its limit"),
                           on_off("recalibrate", &Settings::recalibrate,
                                  "measure the machine in turn with the steps: what to predict for "
                                  "it as it was then")})}));
}

List compare_table() {
  return lead({"model", "batch", "json"},
              join({model_settings(),
                    group("the model", {class_count(), batch_size("samples of one step")}),
                    group("measuring", {thread_count(),
                                        whole("rounds", &Settings::rounds, 1,
                                              "how often each row is measured", 1000),
                                        offload_directory(), machine_file(), json()})}));
}

List inspect_table() {
  return group("what to show", {json(),
                                whole("image-size", &Settings::image_size, 1,
                                      "size that images of a folder are brought to", 16384),
                                text("out", &Settings::out, "FILE",
                                     "a grid .png of some samples, as the network sees them")});
}

List machine_table() {
  return group("what to measure", {thread_count(), offload_directory(), json()});
}

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
          whole("params", &Settings::params, 1,
                "go on removing heads and MLP units until at most N parameters are left",
                int64_t{1} << 44),
          choice(
              "by", &Settings::by, kScoreWords,
              "what matters least: by norm of the weights, by the optimizer's second moments, or "
              "at random"),
          choice("scope", &Settings::scope, "block|model",
                 "compare within each block, or over the model"),
          text("mask", &Settings::mask, "FILE",
               "your own choice: safetensors of 0 and 1 (1 stays) named blocks, heads.I, mlp.I"),
          whole("seed", &Settings::seed, 0, "of --by random", std::numeric_limits<int64_t>::max()),
          on_off("fresh", &Settings::fresh, "the optimizer starts anew: moments of zero"),
          on_off("dry-run", &Settings::dry_run,
                 "show what would go, and what training it would take; write nothing"),
          json(),
      });
}

// What a plan for training the pruned model depends on.
List prune_table() {
  return lead(
      {"from", "out", "heads", "mlp", "memory", "batch", "dry-run"},
      join({prune_settings(),
            group("memory and techniques",
                  {otherwise("nothing is removed for it",
                             bytes("memory", &Settings::memory,
                                   "remove heads and MLP units until training fits, such as 2G")),
                   otherwise("the checkpoint's", batch_size("samples of one optimizer step")),
                   real("clip", &Settings::clip, 0, 1e9, "largest gradient norm; 0 never clips"),
                   thread_count(), machine_file()}),
            technique_settings(),
            group("drawing pictures", {whole("sample-every", &Settings::sample_every, 0,
                                             "steps between pictures; 0 draws none")}),
            sampler_settings("sample-steps")}));
}

std::map<std::string, List> make_tables() {
  return {{"plan", plan_table()},       {"train", train_table()},     {"sample", sample_table()},
          {"grad", grad_table()},       {"inspect", inspect_table()}, {"bench", bench_table()},
          {"compare", compare_table()}, {"machine", machine_table()}, {"prune", prune_table()}};
}

}  // namespace

const std::vector<Setting>& settings_of(const std::string& verb) {
  static const auto kTables = make_tables();
  static const std::vector<Setting> kNone;
  const auto found = kTables.find(verb);
  return found == kTables.end() ? kNone : found->second;
}

Settings defaults_of(const std::string& verb) {
  Settings settings;
  settings.verb = verb;
  if (verb == "bench") settings.clip = 1;
  if (verb == "compare") settings.rounds = 3;
  return settings;
}

}  // namespace ebb
