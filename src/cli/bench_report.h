// What `ebb bench` has measured, of one process or of all ranks, and how it is told.
#pragma once

#include <ebb/step_record.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/peers.h"
#include "plan/link.h"
#include "plan/planned_run.h"
#include "report/op_shares.h"

namespace ebb {

// What one rank has measured of itself: medians of its steps.
struct RankBench {
  double step_seconds = 0;
  RankSeconds seconds;
  int64_t sent_bytes = 0;  // in a step
  int64_t peak_bytes = 0;  // of the process
  double sgemm_flops_per_second = 0;
  int64_t planned_bytes = 0, planned_sent_bytes = 0;
};

struct BenchReport {
  std::string model, isa;
  int64_t batch = 0, tokens = 0;
  int threads = 0;
  double model_flops = 0;                                  // of a step
  double predicted_seconds = 0, recalibrated_seconds = 0;  // 0: not asked for
  std::vector<RankBench> ranks;                            // one, of a process that is alone
  RankPlace place;
  Link link;
  const StepProfile* profile = nullptr;  // of rank 0; null: none

  // Of all of them: what the slowest takes, what they do together, and what the fullest holds.
  double step_seconds() const;
  double sgemm_flops_per_second() const;
  int64_t peak_bytes() const;
  int64_t planned_bytes() const;
  double model_gflops() const { return model_flops / step_seconds() * 1e-9; }
  double of_sgemm() const { return model_flops / step_seconds() / sgemm_flops_per_second(); }

  std::vector<RankSeconds> rank_seconds() const;
};

// Collective: rank 0 has what all ranks have measured.
std::vector<RankBench> told_by_all(Peers& peers, const RankBench& own);

std::string bench_text(const BenchReport& report);
std::string bench_json(const BenchReport& report);

}  // namespace ebb
