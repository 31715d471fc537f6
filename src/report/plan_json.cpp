#include <cmath>
#include <nlohmann/json.hpp>

#include "plan/layout.h"
#include "report/plan_report.h"

namespace ebb {

namespace {

using nlohmann::ordered_json;

const char* name_of(int purpose) { return purpose_name(static_cast<Purpose>(purpose)); }

ordered_json techniques_json(const PlanReport& r) {
  ordered_json all = ordered_json::array();
  for (const TechniqueUse& use : r.techniques) {
    all.push_back({{"name", use.name}, {"setting", use.setting}, {"class", use.kind}});
  }
  return all;
}

ordered_json layers_json(const PlanReport& r) {
  ordered_json layers;
  for (const PlanReport::Layer& layer : r.layers) {
    for (int i = 0; i < kPurposes; ++i) {
      if (layer.bytes[i] > 0) layers[layer.name][name_of(i)] = layer.bytes[i];
    }
  }
  return layers;
}

ordered_json ranks_json(const PlanReport& r) {
  ordered_json ranks = ordered_json::array();
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const RankBytes& each = r.ranks[i];
    ranks.push_back({{"rank", i},
                     {"process_bytes", each.process_bytes},
                     {"arena_bytes", each.arena_bytes},
                     {"sent_bytes", each.sent_bytes},
                     {"techniques", techniques_json(r)}});
  }
  return ranks;
}

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

// JSON has no infinity: null is a code that always pays.
ordered_json codes_json(const PlanReport& r) {
  ordered_json codes = ordered_json::array();
  for (const CodeGain& code : r.codes) {
    const bool always = std::isinf(code.pays_below);
    codes.push_back(
        {{"code", code.code},
         {"sent_bytes", code.sent_bytes},
         {"predicted_step_seconds", code.seconds},
         {"pays_below_bits_per_second", always ? ordered_json() : ordered_json(code.pays_below)}});
  }
  return codes;
}

ordered_json phases_json(const PlanReport& r) {
  ordered_json phases = ordered_json::array();
  for (const PlannedPhase& phase : r.phases) {
    phases.push_back({{"after_step", phase.begin},
                      {"exchange", phase.code},
                      {"process_bytes", phase.process_bytes},
                      {"sent_bytes", phase.sent_bytes},
                      {"predicted_step_seconds", phase.seconds}});
  }
  return phases;
}

}  // namespace

std::string report_json(const PlanReport& r) {
  ordered_json j;
  j["model"] = r.model;
  j["params"] = r.params;
  j["batch"] = r.batch;
  j["micro_batch"] = r.parts[0].size;
  j["accumulation"] = r.accumulation;
  j["budget_bytes"] = r.budget_bytes;
  j["fits"] = r.fits;
  j["process_bytes"] = r.process_bytes;
  j["disk_bytes"] = r.away_bytes;
  j["arena_bytes"] = r.arena_bytes;
  j["outside_bytes"] = r.outside_bytes;
  j["floor_bytes"] = r.floor_bytes;
  for (int i = 0; i < kPurposes; ++i) j["ledger"][name_of(i)] = r.purposes[i].at_peak;
  j["ledger"]["gap"] = r.gap;
  j["layers"] = layers_json(r);
  j["techniques"] = techniques_json(r);
  j["blocks"] = ordered_json::array();
  for (const BlockChoice& block : r.blocks) {
    j["blocks"].push_back({{"recompute", block.keep.recomputed()}, {"forwards", block.forwards}});
  }
  if (!r.ranks.empty()) {
    j["layout"] = layout_text(r.place);
    j["ranks"] = ranks_json(r);
    if (!r.phases.empty()) j["phases"] = phases_json(r);
    j["codes"] = codes_json(r);
  }
  j["peak_op"] = r.peak_op;
  for (int i = 0; i < kPurposes; ++i) {
    const PlanReport::Purposed& each = r.purposes[i];
    if (each.most > 0) j["peaks"][name_of(i)] = {{"bytes", each.most}, {"op", each.most_at}};
  }
  j["predicted_step_seconds"] = r.step_seconds;
  j["step_flops"] = r.step_flops;
  if (const auto& outlook = r.outlook) {
    j["total_seconds"] = or_null(outlook->total_seconds());
    j["first_picture_seconds"] = or_null(outlook->first_picture_seconds());
    j["first_checkpoint_seconds"] = or_null(outlook->first_checkpoint_seconds());
    j["drawing_seconds"] = outlook->drawing_seconds;
    j["checkpoint_bytes"] = outlook->checkpoint_bytes;
    j["disk_total_bytes"] = or_null(outlook->disk_bytes());
  }
  return j.dump(2);
}

}  // namespace ebb
