#include "train/run_events.h"

#include <fmt/format.h>

#include "base/text.h"
#include "machine/budget.h"
#include "train/prune_event.h"
#include "train/run_folder.h"

namespace ebb {

RunEvents::RunEvents(TrainOptions& options, const Source& source, const Machine& machine,
                     Peers* peers)
    : o_(options), source_(source), machine_(machine), peers_(peers) {}

std::vector<std::string> RunEvents::announced() const {
  std::vector<std::string> lines;
  if (o_.pruning) lines.push_back(schedule_text(*o_.pruning, o_.steps));
  const Decisions& d = o_.decisions;
  if (!d.exchange) return lines;
  const std::vector<ExchangePhase> phases = exchange_phases(*d.exchange, d.exchange_warmup);
  if (phases.size() < 2) return lines;
  std::string line = "exchange: warms up with " + exchange_text(phases[0].code);
  for (size_t i = 1; i < phases.size(); ++i) {
    line += fmt::format(", after step {} {}", phases[i].begin, exchange_text(phases[i].code));
  }
  if (phases.back().begin >= o_.steps) line += fmt::format("; the run ends with step {}", o_.steps);
  lines.push_back(std::move(line));
  return lines;
}

void RunEvents::check(const PruneProgress& progress) const {
  if (!o_.pruning) return;
  check_share(*o_.pruning, o_.config, begun_with(*o_.pruning, progress, o_.config),
              machine_.device->panel());
}

bool RunEvents::prunes(const CheckpointInfo& info) const {
  return o_.pruning && o_.pruning->due(info.step, info.pruning.step);
}

bool RunEvents::prunes_after(int64_t steps) const {
  return o_.pruning && o_.pruning->due(steps, steps - 1);
}

ExchangeCode RunEvents::code_after(int64_t steps) const {
  const Decisions& d = o_.decisions;
  return d.exchange ? exchange_after(*d.exchange, d.exchange_warmup, steps) : ExchangeCode{};
}

// Behind the last step there is nothing to send any more.
bool RunEvents::codes_change_after(int64_t steps) const {
  return steps > 0 && steps < o_.steps && !(code_after(steps) == code_after(steps - 1));
}

PlannedRun RunEvents::plan(int64_t steps) const {
  return plan_fitting_run(after_steps(run_spec(o_, &source_), steps), machine_);
}

void RunEvents::plan_for(int64_t steps, std::optional<PlannedRun>& planned) const {
  const bool other =
      o_.decisions.exchange && !(planned->step.choices.storage.exchange == code_after(steps));
  if (!other) return;
  planned.reset();
  planned = plan(steps);
}

std::vector<std::string> RunEvents::carry_out(int64_t steps, const std::filesystem::path& from,
                                              const std::filesystem::path& to,
                                              std::optional<PlannedRun>& planned) {
  planned.reset();
  const DitConfig before = o_.config;
  const bool smaller = o_.pruning && prune_if_due(from, to, *o_.pruning, machine_.device->panel(),
                                                  o_.budget_bytes, peers_);
  if (smaller) {
    const SafetensorsReader file(to, Exit::disk, header_limit(o_.budget_bytes));
    o_.config = read_info(file).config;
    o_.settings = with_shapes(o_.settings, o_.config);
  }
  planned = plan(steps);
  std::vector<std::string> what;
  if (smaller) {
    what.push_back(fmt::format("pruned: {}; {} parameters, {} planned",
                               removed_text(before, o_.config), parameter_count(o_.config),
                               format_size(planned->most_bytes())));
  }
  if (codes_change_after(steps)) {
    what.push_back(fmt::format("exchange: {} from now on; {} planned, {} sent a step",
                               exchange_text(code_after(steps)), format_size(planned->most_bytes()),
                               format_size(planned->most_sent_bytes())));
  }
  return what;
}

}  // namespace ebb
