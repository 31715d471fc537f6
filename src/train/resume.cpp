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

std::vector<std::string> run_differences(const CheckpointInfo& saved, const TrainOptions& asked) {
  std::vector<std::string> found;
  const auto compare = [&](const char* flag, const auto& then, const auto& now) {
    if (then != now) found.push_back(fmt::format("{} {}, not {}", flag, then, now));
  };
  const DitConfig& then = saved.config;
  const DitConfig& now = asked.config;
  compare("--width", then.width, now.width);
  compare("--depth", then.depth(), now.depth());
  compare("--heads", then.width / then.head_width, now.width / now.head_width);
  compare("--patch", then.patch, now.patch);
  compare("--image-size", then.image_size, now.image_size);
  compare("--channels", then.channels, now.channels);
  compare("--classes", then.classes, now.classes);
  compare("--objective", std::string(objective_name(then.objective)),
          std::string(objective_name(now.objective)));
  compare("--qk-norm", std::string(qk_norm_name(then.qk_norm)),
          std::string(qk_norm_name(now.qk_norm)));
  compare("--no-learn-sigma", !then.learn_sigma, !now.learn_sigma);
  if (found.empty() && !(then == now))
    found.emplace_back("other heads or MLP widths in its blocks");
  if (saved.step > 0) compare("--batch", saved.samples / saved.step, asked.step.batch);
  compare("--optimizer", printable(saved.optimizer),
          std::string(optimizers()[static_cast<size_t>(asked.step.optimizer)].name));
  compare("--seed", saved.seed, asked.seed);
  return found;
}

void check_run(const SafetensorsReader& file, const CheckpointInfo& saved,
               const TrainOptions& asked) {
  const auto found = run_differences(saved, asked);
  if (found.empty()) return;
  fail(Exit::disk, fmt::format("{}: its run has {}", file.path().string(), fmt::join(found, "; ")),
       "resume with the run's own settings.toml and without those flags, or start another --out");
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

}  // namespace ebb
