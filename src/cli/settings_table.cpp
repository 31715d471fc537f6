#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "cli/settings.h"

namespace ebb {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Setting whole(const char* name, int64_t Settings::*member, int64_t low, const char* help,
              int64_t high = std::numeric_limits<int32_t>::max()) {
  return {name, "N", help,
          [=](Settings& s, const std::string& text, const std::string& where) {
            const int64_t value = parse_int(text, where);
            if (value < low || value > high) {
              fail(Exit::usage,
                   fmt::format("{}: found {}, wanted {} to {}", where, value, low, high));
            }
            s.*member = value;
          },
          [=](const Settings& s) { return fmt::format("{}", s.*member); }};
}

Setting real(const char* name, double Settings::*member, double low, double high,
             const char* help) {
  return {name, "X", help,
          [=](Settings& s, const std::string& text, const std::string& where) {
            const double value = parse_real(text, where);
            if (value < low || value > high) {
              fail(Exit::usage,
                   fmt::format("{}: found {}, wanted {} to {}", where, value, low, high));
            }
            s.*member = value;
          },
          [=](const Settings& s) { return fmt::format("{}", s.*member); }};
}

Setting text(const char* name, std::string Settings::*member, const char* value, const char* help) {
  return {name, value, help,
          [=](Settings& s, const std::string& given, const std::string&) { s.*member = given; },
          [=](const Settings& s) { return quoted(s.*member); }};
}

Setting choice(const char* name, std::string Settings::*member, const char* choices,
               const char* help) {
  Setting made = text(name, member, choices, help);
  made.set = [=](Settings& s, const std::string& given, const std::string& where) {
    const auto known = split(choices, '|');
    for (const std::string& word : known) {
      if (given == word) {
        s.*member = given;
        return;
      }
    }
    fail(Exit::usage, fmt::format("{}: found '{}', wanted {}{}", where, printable(given), choices,
                                  did_you_mean(given, known)));
  };
  return made;
}

Setting on_off(const char* name, bool Settings::*member, const char* help) {
  return {name, "", help,
          [=](Settings& s, const std::string& given, const std::string& where) {
            if (given != "true" && given != "false") {
              fail(Exit::usage,
                   fmt::format("{}: found '{}', wanted true or false", where, printable(given)));
            }
            s.*member = given == "true";
          },
          [=](const Settings& s) { return s.*member ? "true" : "false"; }};
}

// Switches off what another setting stores.
Setting without(const char* name, bool Settings::*member, const char* help) {
  Setting made = on_off(name, member, help);
  made.set = [=, set = made.set](Settings& s, const std::string& given, const std::string& where) {
    set(s, given, where);
    s.*member = !(s.*member);
  };
  made.stored = false;
  return made;
}

Setting bytes(const char* name, int64_t Settings::*member, const char* help) {
  return {name, "SIZE", help,
          [=](Settings& s, const std::string& given, const std::string& where) {
            s.*member = parse_size(given, where);
          },
          [=](const Settings& s) { return fmt::format("{}", s.*member); }};
}

// A number from 1 on, or a word that stands for 0.
Setting whole_or(const char* word, const char* name, int64_t Settings::*member, const char* help) {
  Setting made = whole(name, member, 1, help, 1 << 20);
  made.value = fmt::format("N|{}", word);
  made.set = [=, number = made.set](Settings& s, const std::string& given,
                                    const std::string& where) {
    if (given == word) {
      s.*member = 0;
    } else {
      number(s, given, where);
    }
  };
  made.get = [=](const Settings& s) {
    return s.*member == 0 ? quoted(word) : fmt::format("{}", s.*member);
  };
  return made;
}

Setting unstored(Setting setting) {
  setting.stored = false;
  return setting;
}

using List = std::vector<Setting>;

List model_settings() {
  return {
      text("model", &Settings::model, "NAME", "DiT-{S,B,L,XL}/{2,4,8}"),
      whole("width", &Settings::width, 4, "width, instead of the named size's", 65536),
      whole("depth", &Settings::depth, 1, "number of blocks", 1024),
      whole("heads", &Settings::heads, 1, "attention heads", 65536),
      whole("patch", &Settings::patch, 1, "side of a patch", 256),
      whole("image-size", &Settings::image_size, 1, "what the network sees: 32 for 256x256 latents",
            16384),
      whole("channels", &Settings::channels, 1, "channels of the input", 1024),
      choice("objective", &Settings::objective, "ddpm|flow", "what is learned (default ddpm)"),
      on_off("no-learn-sigma", &Settings::no_learn_sigma, "ddpm: predict the noise only"),
      choice("qk-norm", &Settings::qk_norm, "none|layer|rms", "normalise queries and keys"),
  };
}

Setting class_count() {
  return whole("classes", &Settings::classes, 0, "number of classes, 0 for none", 10'000'000);
}

Setting thread_count() {
  return whole("threads", &Settings::threads, 1, "threads (default: OMP_NUM_THREADS or all CPUs)",
               1024);
}

List budget_settings() {
  return {
      bytes("memory", &Settings::memory,
            "what the whole process may use: 2G, 512M (default: 80 % of what is available)"),
      thread_count(),
      unstored(text("config", &Settings::config, "FILE", "settings from a TOML file; flags win")),
  };
}

Setting offload_directory() {
  return text("offload", &Settings::offload, "DIR",
              "a directory on a disk for what may be kept there (default: nothing)");
}

// What the planner decides unless the user does.
List technique_settings() {
  return {
      whole_or("auto", "micro-batch", &Settings::micro_batch,
               "samples that go through the network together (default auto)"),
      text("recompute", &Settings::recompute, "auto|none|all|A+B",
           "tensors that every block computes again in its backward pass (default auto)"),
      choice("order", &Settings::order, "auto|batch|layer",
             "micro-batches one after the other, or layer by layer"),
      choice("release", &Settings::release, "auto|on|off",
             "update each parameter as soon as its gradient is complete"),
      text("allow", &Settings::allow, "A,B",
           "what may change numbers: bf16, fp16, grad16, adam8, ema16 (default: nothing)"),
      offload_directory(),
      choice("precision", &Settings::precision, "auto|fp32|bf16|fp16",
             "how activations and working weights are stored"),
      choice("grad-precision", &Settings::grad_precision, "auto|fp32|bf16",
             "how the gradients of matrices are stored"),
      choice("moments", &Settings::moments, "auto|fp32|8bit", "how Adam's moments are stored"),
      choice("ema-precision", &Settings::ema_precision, "auto|fp32|bf16",
             "how the averaged matrices are stored"),
  };
}

Setting batch_size(const char* help) { return whole("batch", &Settings::batch, 1, help, 1 << 20); }

List sampler_settings(const char* steps_name) {
  return {
      choice("sampler", &Settings::sampler, "ddpm|ddim|euler|heun",
             "default: ddim for ddpm, euler for flow"),
      whole(steps_name, &Settings::sample_steps, 1, "steps of the sampler", 1000),
      real("guidance", &Settings::guidance, -100, 1000,
           "classifier-free guidance; 1 is none (ignored without classes)"),
      on_off("guide-three-channels", &Settings::guide_three_channels,
             "guide channels 0-2 only, as the reference does"),
      on_off("no-clip", &Settings::no_clip, "do not clamp predicted pixels to [-1, 1]"),
      whole("count", &Settings::count, 1, "samples of each class", 1 << 24),
  };
}

List train_settings() {
  return {
      text("data", &Settings::data, "DIR", "IDX files, a folder of images, or fast-DiT features"),
      unstored(text("out", &Settings::out, "DIR", "the run's folder")),
      unstored(on_off("resume", &Settings::resume, "go on with the run in --out")),
      unstored(whole("resume-step", &Settings::resume_step, 0,
                     "resume from the checkpoint of this step instead of the newest",
                     int64_t{1} << 40)),
      unstored(choice("data-changed", &Settings::data_changed, "refuse|accept",
                      "resume on data that is not what the run was trained on (default refuse)")),
      whole("steps", &Settings::steps, 1, "optimizer steps in all", int64_t{1} << 32),
      real("epochs", &Settings::epochs, 1e-6, 1e9, "passes over the data, instead of --steps"),
      real("lr", &Settings::lr, 0, 1000, "learning rate"),
      whole("warmup", &Settings::warmup, 0, "steps over which the rate grows from 0"),
      real("weight-decay", &Settings::weight_decay, 0, 1000, "of AdamW"),
      text("betas", &Settings::betas, "B1,B2", "of AdamW"),
      real("clip", &Settings::clip, 0, 1e9, "largest gradient norm; 0 never clips"),
      real("ema", &Settings::ema, 0, 1, "decay of the averaged weights; 0 keeps none"),
      on_off("ema-ramp", &Settings::ema_ramp,
             "average over the last tenth of the steps until --ema is longer (default)"),
      without("no-ema-ramp", &Settings::ema_ramp, "--ema from the first step, as the reference"),
      whole("ema-every", &Settings::ema_every, 1, "steps between averages, of decay^N each"),
      real("label-drop", &Settings::label_drop, 0, 1, "share of labels dropped, for guidance"),
      choice("time-sampling", &Settings::time_sampling, "uniform|logit-normal",
             "how flow draws its times"),
      choice("flip", &Settings::flip, "auto|on|off",
             "mirror half of the samples (auto: only image folders)"),
      whole("loader-threads", &Settings::loader_threads, 1, "threads that decode data", 256),
      whole("seed", &Settings::seed, 0, "of everything random",
            std::numeric_limits<int64_t>::max()),
      whole("save-every", &Settings::save_every, 0, "steps between checkpoints; 0 never saves"),
      whole("keep", &Settings::keep, 0, "newest checkpoints kept; 0 keeps all"),
      whole("sample-every", &Settings::sample_every, 0, "steps between pictures; 0 draws none"),
      whole("log-every", &Settings::log_every, 0, "steps between lines when not on a terminal"),
      unstored(on_off("debug-memory", &Settings::debug_memory,
                      "prove every op's memory declarations while training; very slow")),
  };
}

List join(std::initializer_list<List> lists) {
  List all;
  for (const List& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Setting json() { return unstored(on_off("json", &Settings::json, "one JSON object on stdout")); }

std::map<std::string, List> make_tables() {
  std::map<std::string, List> tables;
  tables["plan"] =
      join({model_settings(),
            {class_count()},
            train_settings(),
            {whole_or("max", "batch", &Settings::batch,
                      "samples of one optimizer step, in all; max: what fits")},
            technique_settings(),
            budget_settings(),
            sampler_settings("sample-steps"),
            {json(), text("csv", &Settings::csv, "FILE", "write the placement here")}});
  tables["train"] = join({train_settings(),
                          {batch_size("samples of one optimizer step, in all")},
                          technique_settings(),
                          model_settings(),
                          {class_count()},
                          sampler_settings("sample-steps"),
                          budget_settings()});
  tables["sample"] = join(
      {{text("from", &Settings::from, "RUN", "a run's folder, or a checkpoint"),
        text("classes", &Settings::sample_classes, "A,B,C",
             "classes to draw, by number or name (default: all)"),
        text("out", &Settings::out, "PATH", "grid .png, set .npz, latents .npy, or a folder"),
        choice("weights", &Settings::weights, "ema|raw", "which weights"),
        whole("batch", &Settings::sample_batch, 1, "samples drawn together (default: what fits)",
              1 << 20),
        whole("seed", &Settings::seed, 0, "of the noise", std::numeric_limits<int64_t>::max())},
       sampler_settings("steps"),
       budget_settings()});
  tables["grad"] = join(
      {{text("weights", &Settings::weights_file, "FILE", "safetensors with the reference's names"),
        text("batch-file", &Settings::batch_file, "FILE", "safetensors with x, noise, t, y"),
        text("out", &Settings::out, "FILE", "loss, output and gradients go here"),
        on_off("debug-memory", &Settings::debug_memory, "prove every op's memory declarations")},
       technique_settings(),
       model_settings(),
       budget_settings()});
  tables["inspect"] = {
      json(),
      whole("image-size", &Settings::image_size, 1, "size that images of a folder are brought to",
            16384),
      text("out", &Settings::out, "FILE", "a grid .png of some samples, as the network sees them")};
  tables["bench"] = join(
      {model_settings(),
       {class_count(), batch_size("samples of one step")},
       {whole("rounds", &Settings::rounds, 1, "measured rounds", 1000), json(),
        on_off("profile", &Settings::profile, "each op's share, and its rate against its limit"),
        on_off("recalibrate", &Settings::recalibrate,
               "measure the machine in turn with the steps: what to predict for it as it was then"),
        real("clip", &Settings::clip, 0, 1e9, "largest gradient norm (default 1)")},
       technique_settings(),
       budget_settings()});
  tables["compare"] = join(
      {model_settings(),
       {class_count(), batch_size("samples of one step"), thread_count(),
        whole("rounds", &Settings::rounds, 1, "how often each row is measured (default 3)", 1000),
        offload_directory(), json()}});
  return tables;
}

}  // namespace

const std::vector<Setting>& settings_of(const std::string& verb) {
  static const auto kTables = make_tables();
  static const std::vector<Setting> kNone;
  const auto found = kTables.find(verb);
  return found == kTables.end() ? kNone : found->second;
}

}  // namespace ebb
