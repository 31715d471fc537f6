#include "train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "formats/model_json.h"
#include "model/optimizer.h"

namespace ebb {

namespace {

struct Differences {
  template <typename T>
  void compare(const char* flag, const T& then, const T& now) {
    if (then != now) found.push_back(fmt::format("{} {}, not {}", flag, then, now));
  }
  std::vector<std::string> found;
};

// As the flag has it.
std::string galore_word(int64_t rank) {
  return rank == Decisions::kQuarter ? "on" : rank > 0 ? fmt::format("{}", rank) : "off";
}

}  // namespace

std::vector<std::string> model_differences(const DitConfig& then, const DitConfig& now) {
  Differences d;
  d.compare("--width", then.width, now.width);
  d.compare("--depth", then.depth(), now.depth());
  d.compare("--heads", then.width / then.head_width, now.width / now.head_width);
  d.compare("--patch", then.patch, now.patch);
  d.compare("--image-size", then.image_size, now.image_size);
  d.compare("--channels", then.channels, now.channels);
  d.compare("--classes", then.classes, now.classes);
  d.compare("--objective", std::string(objective_name(then.objective)),
            std::string(objective_name(now.objective)));
  d.compare("--qk-norm", std::string(qk_norm_name(then.qk_norm)),
            std::string(qk_norm_name(now.qk_norm)));
  d.compare("--no-learn-sigma", !then.learn_sigma, !now.learn_sigma);
  if (d.found.empty()) d.compare("--shapes", shapes_text(then.blocks), shapes_text(now.blocks));
  return std::move(d.found);
}

std::vector<std::string> run_differences(const CheckpointInfo& saved, const TrainOptions& asked) {
  Differences d{model_differences(saved.config, asked.config)};
  if (d.found.empty() && !(saved.config == asked.config)) d.found.emplace_back("another model");
  if (saved.step > 0) d.compare("--batch", saved.samples / saved.step, asked.step.batch);
  d.compare("--optimizer", printable(saved.optimizer),
            std::string(optimizers()[static_cast<size_t>(asked.step.optimizer)].name));
  if (asked.decisions.galore_rank) {
    d.compare("--galore", galore_word(saved.galore_rank),
              galore_word(*asked.decisions.galore_rank));
  }
  d.compare("--seed", saved.seed, asked.seed);
  return std::move(d.found);
}

void check_run(const SafetensorsReader& file, const CheckpointInfo& saved,
               const TrainOptions& asked) {
  const auto found = run_differences(saved, asked);
  if (found.empty()) return;
  fail(Exit::disk, fmt::format("{}: its run has {}", file.path().string(), fmt::join(found, "; ")),
       asked.from.empty()
           ? "resume with the run's own settings.toml and without those flags, or start another "
             "--out"
           : "leave those flags out: the checkpoint says it");
}

void check_galore(const SafetensorsReader& file, const CheckpointInfo& saved,
                  const StepSpec& step) {
  const int64_t rank = step.choices.storage.galore_rank;
  if (saved.galore_rank == rank) return;
  fail(Exit::disk,
       fmt::format("{}: its run has --galore {}, not {}: moments of one shape say little of those "
                   "of another",
                   printable(file.path().string()), galore_word(saved.galore_rank),
                   galore_word(rank)),
       "leave --galore out: the checkpoint says it");
}

Optimizer saved_optimizer(const SafetensorsReader& file, const CheckpointInfo& saved) {
  for (size_t i = 0; i < optimizers().size(); ++i) {
    if (saved.optimizer == optimizers()[i].name) return static_cast<Optimizer>(i);
  }
  fail(Exit::disk,
       fmt::format("{}: found the state of an optimizer '{}', which there is none of",
                   printable(file.path().string()), printable(saved.optimizer)),
       "it was written by a later version of Ebb");
}

DataRecord record_of(const DataInfo& info) {
  DataRecord record = {info.kind, info.count, info.fingerprint, {}, {}};
  size_t bytes = 0;
  for (const std::string& name : info.class_names) bytes += name.size();
  if (bytes > kMostRecordBytes) return record;
  record.names = info.class_names;
  record.counts = info.class_counts;
  return record;
}

namespace {

constexpr size_t kMostNamed = 3;  // of one kind of difference

// Phrases of one kind, the first few of them.
class Phrases {
 public:
  explicit Phrases(const char* more) : more_(more) {}
  void add(std::string phrase) {
    if (++count_ <= kMostNamed) said_.push_back(std::move(phrase));
  }
  void end(std::vector<std::string>& to) {
    if (count_ > kMostNamed) said_.push_back(fmt::format("{} more {}", count_ - kMostNamed, more_));
    to.insert(to.end(), said_.begin(), said_.end());
  }

 private:
  const char* more_;
  size_t count_ = 0;
  std::vector<std::string> said_;
};

void compare_names(std::vector<std::string>& found, const std::vector<std::string>& then,
                   const std::vector<std::string>& now) {
  Phrases moved("labels have another meaning"), gone("classes are gone"), fresh("classes are new");
  const size_t both = std::min(then.size(), now.size());
  for (size_t i = 0; i < both; ++i) {
    if (then[i] == now[i]) continue;
    moved.add(
        fmt::format("label {} was '{}' and is '{}' now", i, printable(then[i]), printable(now[i])));
  }
  for (size_t i = both; i < then.size(); ++i) {
    gone.add(fmt::format("label {} ('{}') is gone", i, printable(then[i])));
  }
  for (size_t i = both; i < now.size(); ++i) {
    fresh.add(fmt::format("label {} ('{}') is new", i, printable(now[i])));
  }
  moved.end(found);
  gone.end(found);
  fresh.end(found);
}

}  // namespace

std::vector<std::string> data_differences(const DataRecord& then, const DataRecord& now) {
  std::vector<std::string> found;
  if (then.kind.empty() || now.kind.empty()) return found;
  if (then.kind != now.kind) {
    found.push_back(fmt::format("it was of kind {} and is {} now", printable(then.kind), now.kind));
  }
  if (!then.names.empty()) compare_names(found, then.names, now.names);
  if (then.count != now.count) {
    found.push_back(fmt::format("{} samples then, {} now", then.count, now.count));
  }
  if (then.names == now.names && then.counts.size() == now.counts.size()) {
    Phrases counts("classes have other counts");
    for (size_t i = 0; i < then.counts.size(); ++i) {
      if (then.counts[i] == now.counts[i]) continue;
      counts.add(
          fmt::format("label {} had {} samples and has {} now", i, then.counts[i], now.counts[i]));
    }
    counts.end(found);
  }
  const bool known = !then.fingerprint.empty() && !now.fingerprint.empty();
  if (found.empty() && known && then.fingerprint != now.fingerprint) {
    found.push_back(fmt::format("the same number of samples, but others (fingerprint {}, now {})",
                                printable(then.fingerprint), now.fingerprint));
  }
  return found;
}

void refuse_data(const SafetensorsReader& file, const std::string& differences) {
  fail(Exit::data,
       fmt::format("{}: the data is not what this run was trained on: {}", file.path().string(),
                   differences),
       "bring it back, start another --out, or go on with it as it is now: --data-changed accept");
}

std::vector<std::string> accepted_data(const SafetensorsReader& file, const CheckpointInfo& saved,
                                       const DataRecord& now, const TrainOptions& asked) {
  const auto found = data_differences(saved.data, now);
  if (found.empty()) return {};
  const std::string what = fmt::format("{}", fmt::join(found, "; "));
  if (!asked.accept_changed_data) refuse_data(file, what);
  std::vector<std::string> lines = {asked.from.empty()
                                        ? fmt::format("data: accepted as changed: {}", what)
                                        : fmt::format("data: not the checkpoint's: {}", what)};
  if (saved.data.names != now.names) {
    lines.emplace_back(
        "data: a label is a place among the sorted names: the model relearns those that moved");
  }
  return lines;
}

void check_name(const SafetensorsReader& file, const CheckpointInfo& saved, int64_t named) {
  if (saved.step == named) return;
  fail(Exit::disk,
       fmt::format("{}: found the state after step {} under this name", file.path().string(),
                   saved.step),
       fmt::format("it belongs under {}", checkpoint_path("", saved.step).filename().string()));
}

}  // namespace ebb
