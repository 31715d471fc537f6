// Where the time of a step goes: each kind of op, its share, and how near it is to the limit that
// holds it, FLOPs or bytes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/cost.h"
#include "program/program.h"
#include "run/executor.h"

namespace ebb {

// What the machine can do: SGEMM at a comfortable shape, a copy of far more than the caches hold.
struct MachineLimits {
  double flops_per_second = 0, bytes_per_second = 0;
  // The least seconds for so much work, and whether it is the FLOPs that take them.
  double bound(double flops, double bytes) const;
  bool by_flops(double flops, double bytes) const;
};
MachineLimits measure_limits();

// "2048 x 384 to 1536" of a linear layer, "8 x 6 heads x 256 tokens x 64" of attention; else empty.
std::string op_shape(const OpParams& params);

class StepProfile {
 public:
  StepProfile(const Program& program, const CostModel& costs) : program_(program), costs_(costs) {}

  // The timeline of one step.
  void add(const std::vector<TimelinePoint>& timeline);

  nlohmann::ordered_json json(const MachineLimits& limits) const;
  std::string text(const MachineLimits& limits) const;

 private:
  struct Row {  // all ops of one kind; of linear layers and attention, of one shape
    std::string kind, shape;
    int64_t calls = 0;
    double seconds = 0, predicted = 0, flops = 0, bytes = 0;
  };
  std::vector<Row> rows() const;  // the longest first

  const Program& program_;
  const CostModel& costs_;
  std::vector<std::vector<double>> seconds_;  // by op, of each step
};

}  // namespace ebb
