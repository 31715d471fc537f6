// Every setting that a user can give, as a flag or as a key of a TOML file: one table serves both,
// the help text and settings.toml.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "api/defaults.h"
#include "plan/techniques.h"
#include "prune/selection.h"

namespace ebb {

struct Settings {
  std::string verb;
  // model; 0, -1 or "" mean "not given": from the data, the checkpoint or the named size
  std::string model, shapes;
  int64_t width = 0, depth = 0, heads = 0, patch = 0;
  int64_t image_size = 0, channels = 0, classes = -1;
  std::string objective;
  bool no_learn_sigma = false;
  std::string qk_norm = "none";
  double density = 1;
  // budget
  int64_t memory = 0;
  int64_t threads = 0;
  Decisions decisions;          // on techniques
  std::string offload;          // directory
  std::string ranks = "auto";   // their layout
  std::string link;             // between them; empty: as measured
  std::string sum = "chain";    // the order in which gradients are added up
  int64_t exchange_warmup = 0;  // steps in which other codes lead up to --exchange
  int64_t peer_timeout = 60;    // seconds
  std::string machine;          // file
  // training
  std::string data;
  int64_t batch = 256, steps = 0;  // batch 0: the largest, for `plan`
  double epochs = 0;
  double lr = 1e-4, weight_decay = 0, clip = 0, ema = 0.9999;
  std::string betas = "0.9,0.999";
  int64_t galore_refresh = 200;
  double galore_scale = 0.25;
  bool ema_ramp = true;
  int64_t ema_every = 1;
  int64_t warmup = 0, seed = 0;
  int64_t save_every = 1000, sample_every = 1000, log_every = 100, keep = 3;
  double label_drop = 0.1;
  std::string time_sampling = "uniform";
  std::string flip = "auto";
  int64_t loader_threads = 1;
  bool resume = false, debug_memory = false;
  std::string begin_from;  // a checkpoint
  int64_t resume_step = 0;
  std::string data_changed = "refuse";
  // pruning while training
  double l1 = 0, group_lasso = 0;
  double prune_to = 0;
  int64_t prune_begin = 0, prune_end = 0, prune_every = 0;
  std::string prune_by;
  // sampling
  std::string from, sampler, weights = "ema", sample_classes;
  int64_t count = 8, sample_steps = 50, sample_batch = 0;
  double guidance = 4;
  bool guide_three_channels = false, no_clip = false;
  // pruning
  Amount prune_heads, prune_mlp, prune_blocks, prune_weights;
  int64_t params = 0;
  std::string by = "l2", scope = "block", mask;
  int64_t samples = 256;
  bool fresh = false, dry_run = false, no_compensation = false;
  // the rest
  std::string out, to, config, weights_file, batch_file, csv, timeline, target;
  int64_t rounds = 5;
  bool json = false, profile = false, recalibrate = false;

  std::map<std::string, std::string>
      given;                       // what the user said, by setting name: "--batch" or file:line
  std::set<std::string> recorded;  // of these, what the run that is gone on with says of itself
  bool has(const std::string& name) const { return given.count(name) != 0; }
  bool said(const std::string& name) const { return has(name) && recorded.count(name) == 0; }
  bool goes_on() const { return resume || !begin_from.empty(); }
};

struct Setting {
  std::string name;   // "image-size": the flag is --image-size, the TOML key image-size
  std::string value;  // how help shows the value; "" for a switch
  std::string help;
  std::function<void(Settings&, const std::string& text, const std::string& where)> set;
  std::function<std::string(const Settings&)> get;  // as a TOML value
  bool stored = true;                               // belongs into settings.toml
  std::string group = "";                           // the heading that help shows it under
  std::string otherwise = "";  // what happens without it, where that is no value of its own
};

// The settings of a verb. An unknown verb has none.
const std::vector<Setting>& settings_of(const std::string& verb);

// What they are before the user says anything.
Settings defaults_of(const std::string& verb);

// The default of a setting as help shows it, "" where there is none: what `get` says of the verb's
// defaults, or `otherwise`.
std::string default_text(const std::string& verb, const Setting& setting);

// Defaults < TOML file (--config, or settings.toml of a resumed run) < flags. Below --config are
// the settings in the checkpoint that `train --from` names. Fails with Exit::usage, naming the flag
// or file:line, with "did you mean"; with Exit::disk where it is the checkpoint's. args: what
// follows the verb.
Settings parse_settings(const std::string& verb, const std::vector<std::string>& args);

// settings.toml: every stored setting of the verb.
std::string settings_toml(const std::string& verb, const Settings& settings);

}  // namespace ebb
