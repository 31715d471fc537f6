// A plan: programs, where each buffer lies in the one arena, and what that adds up to.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plan/lifetimes.h"
#include "program/device.h"
#include "program/program.h"

namespace ebb {

// Bytes by purpose and by layer. Buffers count with their alignment; `gap` is what packing could
// not fill, so that the sum is the arena.
struct Ledger {
  std::array<int64_t, kPurposes> purpose{};
  std::map<std::string, std::array<int64_t, kPurposes>> layer;
  int64_t gap = 0;
  int64_t total() const;
};

struct Plan {
  Program program;
  std::vector<Lifetime> lives;      // by buffer: from the first op that touches it to the last
  std::vector<Lifetime> held;       // the same, but ending where an output takes the buffer's place
  std::vector<int64_t> offsets;     // by buffer, in bytes from the start of its home
  int64_t resident_bytes = 0;       // the arena's lower part: what survives between runs
  int64_t bytes = 0;                // the highest end of any buffer
  std::vector<int64_t> away_bytes;  // the same of those beyond each lane
  int peak_op = 0;                  // the first op at which the most bytes are alive
  Ledger ledger;                    // at that op
};

// Several programs that share residents (by name) and run one at a time, in one arena.
struct PlanSet {
  std::vector<Plan> plans;
  int64_t arena_bytes = 0;
  std::vector<int64_t> away_bytes;  // by lane
  Limits limits;

  const Plan& at(std::string_view program) const;  // absent: a Bug
  int64_t total_away_bytes() const;                // beyond all lanes
};

// Fails with Exit::budget where a buffer is larger than a piece of the device's memory. `haste`: of
// packing, for one of so many plans that are made together.
PlanSet make_plans(std::vector<Program> programs, const Limits& limits = {}, int haste = 1);

// Memory that the plans themselves take, and an executor of each: of every op and every buffer.
int64_t bookkeeping_bytes(const Op& op);
int64_t bookkeeping_bytes(const Buffer& buffer);
int64_t bookkeeping_bytes(const PlanSet& plans);

// What making a plan takes at most, where it then takes `own_bytes` itself: before there is an
// arena, programs are written, rewritten for transfers, and packed.
int64_t planning_bytes(int64_t own_bytes, bool transfers);

// Proves a plan against its program by itself, sharing nothing with the packer; throws a Bug that
// names the buffers. Used on every plan that is made.
void validate_plan(const Plan& plan, int64_t arena_bytes, const Limits& limits = {});

// id,lower,upper,size,offset: what minimalloc's tools read.
std::string plan_csv(const Plan& plan, const Limits& limits = {});

}  // namespace ebb
