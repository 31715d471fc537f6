// One value that describes a plan. Text and JSON are written from it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "plan/code_gains.h"
#include "plan/planned_run.h"
#include "train/outlook.h"

namespace ebb {

struct PlanReport {
  // Bytes of one purpose: at the step's peak, and where it takes the most itself.
  struct Purposed {
    int64_t at_peak = 0, most = 0;
    std::string most_at;  // the op
    bool always = false;  // as much as that from the first op on
  };
  using Bytes = std::array<int64_t, kPurposes>;
  struct Layer {
    std::string name;
    Bytes bytes{};
  };

  std::string model;
  int64_t params = 0, tokens = 0, batch = 0;
  std::vector<Part> parts;  // of the batch
  int64_t accumulation = 0;
  int64_t budget_bytes = 0;
  bool fits = false;
  int64_t process_bytes = 0, arena_bytes = 0, outside_bytes = 0, floor_bytes = 0;
  int64_t away_bytes = 0;  // beyond lanes
  std::array<Purposed, kPurposes> purposes;
  int64_t gap = 0;            // of the arena, that none of them takes
  std::vector<Layer> layers;  // at the peak; blocks in their order
  std::string peak_op;
  std::vector<TechniqueUse> techniques;
  std::vector<BlockChoice> blocks;
  double step_seconds = 0, step_flops = 0;
  RankPlace place;
  std::vector<RankBytes> ranks;      // where there are several
  std::vector<PlannedPhase> phases;  // where codes change; the plan is of the fullest
  std::vector<CodeGain> codes;       // for gradients, that would send fewer bytes
  std::optional<Outlook> outlook;    // absent: of a run whose length nobody has said
  std::vector<WayOut> lossy_ways;    // how far down they would reach
  std::string fewer_pictures;        // why they are not what they are by default
};

PlanReport describe(const std::string& model, const DitConfig& config, const PlannedRun& run,
                    int64_t budget_bytes, const std::optional<Outlook>& outlook);

// The table that `ebb plan` prints.
std::string report_text(const PlanReport& report);

// Single lines, for who has no room for a table: bytes by purpose; techniques and time.
std::string memory_line(const PlanReport& report);
std::string techniques_line(const PlanReport& report);
// One line on time and one on disk, each beginning with `indent`. `done`: steps that are behind.
std::string outlook_lines(const Outlook& outlook, int64_t done, const char* indent);

// One object, for programs.
std::string report_json(const PlanReport& report);

}  // namespace ebb
