#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "plan/packing.h"

namespace ebb {

namespace {

struct Resident {
  int64_t offset, bytes;
};
using Residents = std::unordered_map<std::string, Resident>;

// Live bytes at each op, without residents; returns the first op at which they are most.
int find_peak(const std::vector<LiveBlock>& blocks, int ops) {
  std::vector<int64_t> change(ops + 1, 0);
  for (const LiveBlock& block : blocks) {
    if (block.life.empty()) continue;
    change[block.life.begin] += block.size;
    change[block.life.end] -= block.size;
  }
  int64_t live = 0;
  int64_t most = -1;
  int at = 0;
  for (int op = 0; op < ops; ++op) {
    live += change[op];
    if (live > most) {
      most = live;
      at = op;
    }
  }
  return at;
}

Ledger ledger_at(const Plan& plan, int op) {
  Ledger ledger;
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Buffer& buffer = plan.program.buffers[i];
    const Lifetime& life = plan.lives[i];
    if (!buffer.resident && (op < life.begin || op >= life.end)) continue;
    const int64_t bytes = aligned(buffer.bytes());
    ledger.purpose[static_cast<int>(buffer.purpose)] += bytes;
    ledger.layer[buffer.layer][static_cast<int>(buffer.purpose)] += bytes;
  }
  return ledger;
}

void place_residents(Residents& residents, int64_t& end, const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.resident) continue;
    const auto [at, added] = residents.try_emplace(buffer.name, Resident{end, buffer.bytes()});
    require(at->second.bytes == buffer.bytes(), "resident {} has {} bytes in {} and {} elsewhere",
            buffer.name, buffer.bytes(), program.name, at->second.bytes);
    if (added) end += aligned(buffer.bytes());
  }
}

Plan make_plan(Program program, const Residents& residents, int64_t resident_bytes) {
  Plan plan;
  plan.lives = lifetimes(program);
  std::vector<LiveBlock> blocks;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    blocks.push_back({aligned(buffer.bytes()), buffer.resident ? Lifetime{} : plan.lives[i]});
  }
  const Packing packing = pack(blocks);
  plan.offsets.resize(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    plan.offsets[i] = buffer.resident ? residents.at(buffer.name).offset
                                      : resident_bytes + packing.offsets[i];
  }
  plan.program = std::move(program);
  plan.resident_bytes = resident_bytes;
  plan.bytes = resident_bytes + packing.peak;
  plan.peak_op = find_peak(blocks, static_cast<int>(plan.program.ops.size()));
  plan.ledger = ledger_at(plan, plan.peak_op);
  plan.ledger.gap = plan.bytes - plan.ledger.total();
  return plan;
}

}  // namespace

int64_t Ledger::total() const {
  int64_t sum = gap;
  for (const int64_t bytes : purpose) sum += bytes;
  return sum;
}

PlanSet make_plans(std::vector<Program> programs) {
  Residents residents;
  int64_t resident_bytes = 0;
  for (const Program& program : programs) place_residents(residents, resident_bytes, program);
  PlanSet set;
  for (Program& program : programs) {
    set.plans.push_back(make_plan(std::move(program), residents, resident_bytes));
    set.arena_bytes = std::max(set.arena_bytes, set.plans.back().bytes);
  }
  for (const Plan& plan : set.plans) validate_plan(plan, set.arena_bytes);
  return set;
}

std::string plan_csv(const Plan& plan) {
  std::string text = "id,lower,upper,size,offset\n";
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Lifetime& life = plan.lives[i];
    if (life.empty()) continue;
    text += fmt::format("{},{},{},{},{}\n", plan.program.buffers[i].name, life.begin, life.end,
                        aligned(plan.program.buffers[i].bytes()), plan.offsets[i]);
  }
  return text;
}

}  // namespace ebb
