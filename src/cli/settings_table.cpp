#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cli/settings_groups.h"
#include "plan/machine.h"

namespace ebb {

namespace {

using List = SettingList;

constexpr const char* kMeasuredLink = "measured at the start";

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

List plan_table() {
  return lead(
      {"model", "batch", "memory", "data", "image-size", "json"},
      join({model_settings(), group("the model", {class_count()}),
            group("training", {whole_or("max", "batch", &Settings::batch,
                                        "samples of one optimizer step, in all; max: the "
                                        "largest that fits")}),
            train_settings(), budget_settings(), technique_settings(),
            rank_settings(link_text(nominal_link()) + ", as within one host"),
            group("memory and techniques", {exchange_warmup(), machine_file(), debug_memory()}),
            pruning_settings(), record_settings(), sampler_settings("sample-steps"),
            group("output",
                  {json(),
                   text("csv", &Settings::csv, "FILE", "write the place of every buffer here"),
                   text("timeline", &Settings::timeline, "FILE",
                        "draw what every rank does in a step, as an .svg here")})}));
}

// A checkpoint to begin with. Of `train` alone: what would be planned is its own model.
Setting begin_from() {
  return unstored(otherwise("random weights",
                            text("from", &Settings::begin_from, "RUN",
                                 "begin with the whole state of a checkpoint: a run's folder, or a "
                                 "file; its settings hold unless flags say others")));
}

List train_table() {
  return lead(
      {"data", "out", "steps", "batch", "memory", "model", "image-size", "resume", "from"},
      join({model_settings(), group("the model", {class_count()}),
            group("training", {batch_size("samples of one optimizer step, in all"), begin_from()}),
            train_settings(), budget_settings(), technique_settings(), rank_settings(kMeasuredLink),
            group("memory and techniques", {exchange_warmup(), debug_memory()}), pruning_settings(),
            record_settings(), sampler_settings("sample-steps")}));
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
            sampler_settings("steps"), budget_settings(),
            equal_rank_settings("processes that each draw a part of the pictures")}));
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
                    budget_settings(), technique_settings(), rank_settings(kMeasuredLink),
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

List convert_table() {
  return group("what to write",
               {text("from", &Settings::from, "RUN", "a run's folder, or a checkpoint"),
                text("to", &Settings::to, "FILE", "safetensors, whole: what was pruned is zero"),
                choice("weights", &Settings::weights, "ema|raw",
                       "the averaged weights, or those of the last step")});
}

std::map<std::string, List> make_tables() {
  return {{"convert", convert_table()}, {"plan", plan_table()},       {"train", train_table()},
          {"sample", sample_table()},   {"grad", grad_table()},       {"inspect", inspect_table()},
          {"bench", bench_table()},     {"compare", compare_table()}, {"machine", machine_table()},
          {"prune", prune_table()}};
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
