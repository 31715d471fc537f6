#include <fmt/format.h>

#include <optional>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/going_on.h"
#include "cli/ranks.h"
#include "cli/resolve.h"
#include "cli/this_machine.h"
#include "cli/verbs.h"
#include "cli/watched.h"
#include "comm/agreement.h"
#include "plan/fastest_place.h"
#include "state/unsent.h"
#include "train/resume.h"

namespace ebb {

void need(const Settings& settings, const std::string& name) {
  if (settings.has(name)) return;
  fail(Exit::usage, fmt::format("--{} is missing", name),
       fmt::format("ebb {} --help shows an example", settings.verb));
}

namespace {

// A run can be resumed from any directory: its settings name places that do not depend on one.
void make_absolute(Settings& s) {
  for (std::string Settings::*place : {&Settings::data, &Settings::offload}) {
    if (!(s.*place).empty()) s.*place = std::filesystem::absolute(s.*place).lexically_normal();
  }
}

}  // namespace

namespace {

// How a batch went through one process, or through other ranks, says nothing about these.
void leave_to_planner(Settings& s, const RankPlace& place) {
  const bool open = layout_is_open(s, place);
  if (!s.said("shard") && (place.data == 1 || open)) s.decisions.shard = std::nullopt;
  if (!s.said("exchange") && place.data == 1) s.decisions.exchange = std::nullopt;
  if (!s.said("micro-batch") && !place.alone()) s.decisions.micro_batch = std::nullopt;
  if (!s.said("tokens")) s.decisions.cut_tokens = std::nullopt;
}

// Whatever a run cannot do without is there, as a flag or as its checkpoint says it.
void need_settings(const Settings& s) {
  need(s, "out");
  const bool lasts = s.has("steps") || s.has("epochs");
  if (!s.begin_from.empty() && s.recorded.empty() && (!s.has("data") || !lasts)) {
    fail(Exit::usage,
         fmt::format("--from: {} was written through the library and has no settings of a run: "
                     "--{} is missing",
                     printable(s.begin_from), s.has("data") ? "steps" : "data"),
         "give --data and --steps, and --lr, --clip and the like where the defaults are not those "
         "of its run");
  }
  need(s, "data");
  if (!lasts) fail(Exit::usage, "--steps is missing", "give --steps or --epochs");
}

// But for the number of parts of blocks it is the one choice about ranks that changes bits.
void say_other_sum(const Settings& s, const std::string& settings_of_run) {
  const std::string key = "\nsum = \"", text = "\n" + settings_of_run;
  const size_t at = text.find(key);
  std::string then = "chain";
  if (at != std::string::npos) {
    const size_t begin = at + key.size();
    then = text.substr(begin, text.find('"', begin) - begin);
  }
  if (then == s.sum) return;
  fmt::print(stderr,
             "warning: --sum {}: the run has summed by {} so far; its bits are others now\n",
             printable(s.sum), printable(then));
}

void say_dropped(const std::string& tensor, const Settings& s, const ExchangeCode& code) {
  if (tensor.empty() || !s.said("exchange")) return;
  fmt::print(
      stderr,
      "warning: --exchange {}: what the run's ranks had not sent to each other is dropped of "
      "every tensor that this does not keep, as {}\n",
      exchange_text(code), tensor);
}

// The step that follows the one that a run goes on with, where another phase takes more.
StepSpec next_step(const PlannedRun& planned, const Decisions& decisions, int64_t done) {
  StepSpec step = planned.step;
  if (planned.phases.empty()) return step;
  const ExchangeCode code = parse_exchange(planned.phases.back().code).value();
  step.choices.storage.exchange = exchange_after(code, decisions.exchange_warmup, done);
  return step;
}

TrainOptions options_of(Settings& s, const DataInfo& info, const Origin* origin, int64_t budget,
                        const RankPlace& place) {
  const DitConfig config = resolve_model(s, &info);
  if (origin == nullptr && place.rank == 0) say_default_model(s);
  TrainOptions options = resolve_training(s, config, &info);
  options.budget_bytes = budget;
  options.step.place = place;
  options.step.leaves = resolve_leaves(s, place);
  if (origin != nullptr) agree(options, *origin);
  if (origin != nullptr && place.rank == 0) say_other_sum(s, origin->info.settings);
  options.drops_unsent = s.said("exchange");
  return options;
}

// All that a run stands on.
struct Prepared {
  MeasuredMachine machine;
  Data data;
  TrainOptions options;
  PlannedRun planned;
};

Prepared prepare(Settings& s, const MeasuredMachine& measured, const RankPlace& place,
                 int64_t budget) {
  const Machine& machine = inside(measured);
  std::optional<Origin> origin = open_origin(s, budget);
  if (origin) follow(s, *origin);
  leave_to_planner(s, place);
  const Data data = resolve_data(s, s.data, budget, true);
  const Source& source = inside(data);
  TrainOptions options = options_of(s, source.info(), origin ? &*origin : nullptr, budget, place);
  const Unsent unsent = origin ? unsent_in(origin->file) : Unsent();
  const int64_t done = origin ? origin->info.step : 0;
  origin.reset();  // its header: nothing is held twice
  if (layout_is_open(s, place)) {
    const auto spec_of = [&](const RankPlace& other) {
      check_parts(s, other);
      TrainOptions changed = options;
      changed.step.place = other;
      return run_spec(changed, &source);
    };
    options.step.place = fastest_place(place, spec_of, machine);
  }
  PlannedRun planned = plan_fitting_run(run_spec(options, &source), machine);
  const std::string fewer = afford_pictures(options, pictures_given(s), planned, machine);
  if (!fewer.empty()) {
    options.fewer_pictures = fewer;
    planned = {};  // gone before the next is made
    planned = plan_fitting_run(run_spec(options, &source), machine);
    settle_pictures(s, options);
  }
  if (place.rank == 0) {
    const StepSpec next = next_step(planned, s.decisions, done);
    say_dropped(without_place(unsent, options.config, next), s, next.choices.storage.exchange);
  }
  settle(s, planned);
  options.decisions = s.decisions;  // also where the run is planned anew
  make_absolute(s);
  options.settings = settings_toml("train", s);
  options.outlook = outlook_of(options, planned, machine);
  return {measured, data, std::move(options), std::move(planned)};
}

void compare(Peers& peers, const Prepared& p) {
  compare_ranks(peers, inside(p.machine), p.options.settings);
  const DataRecord data = record_of(inside(p.data).info());
  expect_same(peers, "data",
              fmt::format("{} samples ({}), {}", data.count, data.kind, data.fingerprint),
              "every rank has to see the same files");
  compare_plans(peers, p.planned);
}

}  // namespace

int run_train(Settings s) {
  need_settings(s);
  const RankPlace place = resolve_place(s, nullptr);
  const MeasuredMachine machine = resolve_machine(s);
  Prepared p = prepare(s, machine, place, resolve_budget(s, machine));
  return train_watched(p.options, inside(p.data), std::move(p.planned), inside(p.machine), nullptr);
}

int train_over_ranks(Settings s, Peers& peers) {
  RankPlace place;
  agree(&peers, [&] {
    need_settings(s);
    place = resolve_place(s, &peers);
  });
  const auto say = [](const std::string& line) { fmt::print("{}\n", line); };
  const MeasuredMachine machine =
      with_link_between(resolve_machine_together(s, peers), s, peers, say);
  const int64_t budget = resolve_budget_of_rank(s, machine);
  std::optional<Prepared> p;
  agree(&peers, [&] { p = prepare(s, machine, place, budget); });
  compare(peers, *p);
  return train_watched(p->options, inside(p->data), std::move(p->planned), inside(p->machine),
                       &peers);
}

}  // namespace ebb
