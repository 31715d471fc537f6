#include "machine/budget.h"

#include <algorithm>

#include "formats/safetensors.h"

namespace ebb {

int64_t default_budget_bytes(const Machine& machine) { return machine.available_bytes / 5 * 4; }

int64_t header_limit(int64_t budget_bytes) {
  return std::min(SafetensorsReader::kMaxHeaderBytes, budget_bytes / 8);
}

}  // namespace ebb
