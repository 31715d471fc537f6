#include "cli/prune_scores.h"

#include <fmt/format.h>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/resolve.h"

namespace ebb {

namespace {

// What a pixel model sees is brought to its size, as in training; latents are as they are.
Data open_data(const Settings& s, const CheckpointInfo& info, int64_t budget) {
  Settings as_trained = s;
  as_trained.image_size = info.pixels ? info.config.image_size : 0;
  as_trained.channels = info.pixels ? info.config.channels : 0;
  return resolve_data(as_trained, s.data, budget, true);
}

DataScores from_data(const Settings& s, const SafetensorsReader& file, const CheckpointInfo& info,
                     const MeasuredMachine* planned_for) {
  resolve_threads(s);
  const bool here = planned_for != nullptr && s.machine.empty();
  const MeasuredMachine machine =
      here ? *planned_for : MeasuredMachine::measure(measure_options(s));
  const int64_t budget = budget_of(s.memory, inside(machine));
  const Data data = open_data(s, info, budget);
  DataScoring options;
  options.samples = s.samples;
  options.seed = static_cast<uint64_t>(s.seed);
  options.budget_bytes = budget;
  DataScores made =
      data_scores(file, info, parse_score(s.by), inside(data), options, inside(machine));
  const auto& notes = data.notes();
  made.notes.insert(made.notes.begin(), notes.begin(), notes.end());
  made.notes.push_back(
      fmt::format("--by {}: from {} samples of {}", s.by, made.samples, printable(s.data)));
  return made;
}

}  // namespace

void check_score_flags(const Settings& s) {
  const ScoreBy by = parse_score(s.by);
  const auto refuse = [&](const char* name, const std::string& why) {
    if (s.has(name)) {
      fail(Exit::usage, fmt::format("{}: {}", s.given.at(name), why), "leave it out");
    }
  };
  if (!needs_data(by)) {
    const std::string why = fmt::format("--by {} looks at no data", s.by);
    refuse("data", why);
    refuse("samples", why);
    if (by != ScoreBy::random) refuse("seed", why + ", and only --by random draws lots");
  } else if (!s.has("data")) {
    fail(Exit::usage, fmt::format("--by {}: needs data to look at", s.by),
         "give --data DIR, such as what the model was trained on; --by fisher and l2 need none");
  }
  if (by != ScoreBy::fluctuation) {
    refuse("no-compensation", fmt::format("--by {} compensates nothing", s.by));
  }
}

DataScores make_scores(const Settings& s, const SafetensorsReader& file, const CheckpointInfo& info,
                       const MeasuredMachine* planned_for) {
  const ScoreBy by = parse_score(s.by);
  if (needs_data(by)) return from_data(s, file, info, planned_for);
  const bool target = s.has("params") || s.has("memory");
  const Scored wanted{s.prune_heads.given() || target, s.prune_mlp.given() || target,
                      s.prune_blocks.given()};
  DataScores made;
  made.scores = scores_of(file, info, by, wanted, static_cast<uint64_t>(s.seed));
  return made;
}

}  // namespace ebb
