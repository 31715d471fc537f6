// A plan in words, for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "plan/layout.h"
#include "report/plan_report.h"

namespace ebb {

namespace {

// "first pictures after 12m, checkpoint after 25m"; of a run that goes on nothing.
std::string first_text(const Outlook& o, int64_t done) {
  const auto picture = o.first_picture_seconds();
  const auto checkpoint = o.first_checkpoint_seconds();
  if (done > 0 || (!picture && !checkpoint)) return "";
  if (picture == checkpoint) {
    return fmt::format("first pictures and checkpoint after {}", format_seconds(*picture));
  }
  std::string text = picture ? "first pictures after " + format_seconds(*picture) : "";
  if (checkpoint) {
    text += fmt::format("{}checkpoint after {}", picture ? ", " : "first ",
                        format_seconds(*checkpoint));
  }
  return text;
}

std::string time_text(const Outlook& o, int64_t done) {
  const std::string first = first_text(o, done);
  if (o.steps == 0) {
    return fmt::format("{}{}", first,
                       first.empty() ? "--steps says how long" : " (in all: give --steps)");
  }
  return fmt::format("about {} for {} steps{}{}",
                     format_seconds(o.seconds_at(o.steps) - o.seconds_at(done)), o.steps - done,
                     first.empty() ? "" : "; ", first);
}

std::string disk_text(const Outlook& o) {
  std::string text = "no checkpoints (--save-every 0)";
  if (o.save_every > 0) {
    text = fmt::format("{} a checkpoint", format_size(o.checkpoint_bytes));
    if (o.checkpoints > 1) text += fmt::format(", at most {} at once", o.checkpoints);
  }
  if (o.offload_bytes > 0) text += fmt::format(", {} in --offload", format_size(o.offload_bytes));
  if (o.disk_bytes().value_or(0) > o.checkpoint_bytes) {
    text += fmt::format(": {} in all", format_size(*o.disk_bytes()));
  }
  return text;
}

const char* name_of(int purpose) { return purpose_name(static_cast<Purpose>(purpose)); }

// "first .. last" for neighbours that are alike, one row each.
template <typename Item, typename Alike>
std::vector<std::pair<size_t, size_t>> runs_of(const std::vector<Item>& items, Alike alike) {
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!runs.empty() && alike(items[runs.back().first], items[i])) {
      runs.back().second = i;
    } else {
      runs.emplace_back(i, i);
    }
  }
  return runs;
}

std::string layers_text(const PlanReport& r) {
  std::string text = fmt::format("  {:<20}", "by layer, each");
  for (int i = 0; i < kPurposes; ++i) {
    if (r.purposes[i].at_peak > 0) text += fmt::format(" {:>10}", name_of(i));
  }
  text += "\n";
  const auto alike = [](const PlanReport::Layer& a, const PlanReport::Layer& b) {
    return a.name.starts_with("block") && b.name.starts_with("block") && a.bytes == b.bytes;
  };
  for (const auto& [first, last] : runs_of(r.layers, alike)) {
    const PlanReport::Layer& layer = r.layers[first];
    text += fmt::format("  {:<20}",
                        first == last ? layer.name : layer.name + " .. " + r.layers[last].name);
    for (int i = 0; i < kPurposes; ++i) {
      if (r.purposes[i].at_peak > 0) text += fmt::format(" {:>10}", format_size(layer.bytes[i]));
    }
    text += "\n";
  }
  return text;
}

// What the peak is made of, and what would make it smaller.
std::string cause_text(const PlanReport& r) {
  int largest = 0, part = 0;
  const PlanReport::Layer* of = &r.layers[0];
  for (int i = 0; i < kPurposes; ++i) {
    if (r.purposes[i].at_peak > r.purposes[largest].at_peak) largest = i;
    for (const PlanReport::Layer& layer : r.layers) {
      if (layer.bytes[i] <= of->bytes[part]) continue;
      of = &layer;
      part = i;
    }
  }
  const double percent =
      100.0 * static_cast<double>(r.purposes[largest].at_peak) / static_cast<double>(r.arena_bytes);
  std::string text = fmt::format(
      "  fullest at {}: {:.0f} % of it is {}; the largest part of a layer is {} of {} ({})\n",
      r.peak_op, percent, name_of(largest), name_of(part), of->name, format_size(of->bytes[part]));
  if (r.floor_bytes < r.process_bytes) {
    text += fmt::format("  a smaller --memory also works, down to {}; steps then take longer\n",
                        format_size(r.floor_bytes));
  }
  std::string ways;
  for (const WayOut& way : r.lossy_ways) {
    ways += fmt::format("{}{} {}", ways.empty() ? "" : ", ", way.how, format_size(way.floor_bytes));
  }
  if (!ways.empty()) text += fmt::format("  where rounding is allowed, down to: {}\n", ways);
  return text;
}

std::string blocks_text(const PlanReport& r) {
  std::string text;
  const auto alike = [](const BlockChoice& a, const BlockChoice& b) { return a == b; };
  for (const auto& [first, last] : runs_of(r.blocks, alike)) {
    const BlockChoice& block = r.blocks[first];
    const std::string name = first == last ? fmt::format("block{}", first)
                                           : fmt::format("block{} .. block{}", first, last);
    const std::string times =
        block.forwards > 1 ? fmt::format(", forward {} times", block.forwards) : "";
    text += fmt::format("  {:<20} recomputes {}{}\n", name, block.keep.recomputed(), times);
  }
  return text;
}

// From which links on they gain nothing.
std::string codes_text(const std::vector<CodeGain>& codes) {
  if (codes.empty()) return "";
  std::string text;
  for (const CodeGain& code : codes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", code.code,
                        code.pays_below == 0          ? "never"
                        : std::isinf(code.pays_below) ? "always"
                                                      : "below " + rate_words(code.pays_below));
  }
  return fmt::format("  gradients in fewer bytes (--exchange) pay on links: {}\n\n", text);
}

// What changes while the run goes on.
std::string phases_text(const std::vector<PlannedPhase>& phases) {
  if (phases.empty()) return "";
  std::string text = fmt::format("  {:<12} {:>12} {:>12} {:>12}   exchange\n", "after step",
                                 "process", "sends a step", "step");
  const auto most = std::max_element(
      phases.begin(), phases.end(),
      [](const auto& a, const auto& b) { return a.process_bytes < b.process_bytes; });
  for (auto phase = phases.begin(); phase != phases.end(); ++phase) {
    text += fmt::format("  {:<12} {:>12} {:>12} {:>12}   {}{}\n", phase->begin,
                        format_size(phase->process_bytes), format_size(phase->sent_bytes),
                        format_seconds(phase->seconds), phase->code,
                        phase == most ? ": the tables are of this one" : "");
  }
  return text + "\n";
}

// Ranks that take the same stand in one row.
std::string ranks_text(const PlanReport& r) {
  if (r.ranks.empty()) return "";
  std::string text =
      fmt::format("  {:<12} {:>12} {:>12}   {} of {}: the table above is rank {}'s\n", "rank",
                  "process", "sends a step", r.ranks.size(), layout_text(r.place), r.place.rank);
  for (size_t i = 0; i < r.ranks.size();) {
    const RankBytes& each = r.ranks[i];
    size_t end = i + 1;
    while (end < r.ranks.size() && r.ranks[end].process_bytes == each.process_bytes &&
           r.ranks[end].sent_bytes == each.sent_bytes) {
      ++end;
    }
    text += fmt::format("  {:<12} {:>12} {:>12}\n",
                        end == i + 1 ? fmt::format("{}", i) : fmt::format("{} .. {}", i, end - 1),
                        format_size(each.process_bytes), format_size(each.sent_bytes));
    i = end;
  }
  return text + "\n" + phases_text(r.phases) + codes_text(r.codes);
}

}  // namespace

std::string outlook_lines(const Outlook& outlook, int64_t done, const char* indent) {
  return fmt::format("{0}time: {1}\n{0}disk: {2}\n", indent, time_text(outlook, done),
                     disk_text(outlook));
}

std::string memory_line(const PlanReport& r) {
  std::string line = "memory:";
  for (int i = 0; i < kPurposes; ++i) {
    if (r.purposes[i].at_peak == 0) continue;
    line += fmt::format(" {} {},", name_of(i), format_size(r.purposes[i].at_peak));
  }
  return line + fmt::format(" outside {} = {} of {}", format_size(r.outside_bytes),
                            format_size(r.process_bytes), format_size(r.budget_bytes));
}

std::string techniques_line(const PlanReport& r) {
  std::string line;
  for (const TechniqueUse& use : r.techniques) {
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", use.name, use.setting);
  }
  return fmt::format("techniques: {}; predicted step {}", line.empty() ? "none needed" : line,
                     format_seconds(r.step_seconds));
}

std::string report_text(const PlanReport& r) {
  std::string text = fmt::format("{}: {} parameters, {} tokens, batch {} = {} x {}{}\n\n", r.model,
                                 r.params, r.tokens, r.batch, r.parts[0].count, r.parts[0].size,
                                 r.parts.size() > 1 ? fmt::format(" + {}", r.parts[1].size) : "");
  text += fmt::format("  {:<12} {:>12} {:>12}   {}\n", "", "at the peak", "its own peak", "at");
  for (int i = 0; i < kPurposes; ++i) {
    const PlanReport::Purposed& each = r.purposes[i];
    if (each.most == 0) continue;
    text += fmt::format("  {:<12} {:>12} {:>12}   {}\n", name_of(i), format_size(each.at_peak),
                        format_size(each.most), each.always ? "all the time" : each.most_at);
  }
  if (r.gap > 0) text += fmt::format("  {:<12} {:>12}\n", "gap", format_size(r.gap));
  text += fmt::format("  {:<12} {:>12}   code, libraries, threads, a reserve\n", "outside",
                      format_size(r.outside_bytes));
  text += fmt::format("  {:<12} {:>12}   of {}: {}\n\n", "process", format_size(r.process_bytes),
                      format_size(r.budget_bytes), r.fits ? "fits" : "does not fit");
  text += ranks_text(r);
  if (r.away_bytes > 0) {
    text += fmt::format("  {:<12} {:>12}   in --offload\n\n", "on disk", format_size(r.away_bytes));
  }
  text += layers_text(r) + "\n" + cause_text(r) + "\n" + blocks_text(r);
  text += fmt::format("  {}\n  {} predicted\n", techniques_line(r),
                      format_rate(static_cast<double>(r.batch) / r.step_seconds));
  if (r.outlook) text += outlook_lines(*r.outlook, 0, "  ");
  if (!r.fewer_pictures.empty()) text += fmt::format("  {}\n", r.fewer_pictures);
  return text;
}

}  // namespace ebb
