#include "plan/cost.h"

#include <algorithm>

#include "program/signature.h"

namespace ebb {

double CostModel::seconds(const OpParams& params) const {
  const Signature s = signature(params);
  double bytes = 0;
  for (const auto* args : {&s.reads, &s.writes, &s.updates, &s.updates}) {
    for (const Arg& arg : *args) {
      bytes += static_cast<double>(element_count(arg.shape) * dtype_bytes(arg.type));
    }
  }
  const double flops = std::visit([](const auto& p) { return p.flops(); }, params);
  return 2e-6 + std::max(flops / 2e11, bytes / 2e10);
}

double predicted_seconds(const Program& program, const CostModel& costs) {
  const std::vector<int64_t> times = program.repeats();
  double total = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    total += static_cast<double>(times[i]) * costs.seconds(program.ops[i].params);
  }
  return total;
}

}  // namespace ebb
