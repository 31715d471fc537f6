#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "plan/packing.h"

namespace ebb {

namespace {

struct Resident {
  int64_t offset, bytes;
  Purpose purpose;
  std::string layer;
  Home home;
};
using Residents = std::unordered_map<std::string, Resident>;

// A buffer beyond a lane begins with a block of its far side.
int64_t whole_blocks(int64_t bytes) {
  constexpr int64_t kBlock = 4096;
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// Where residents end.
struct Ends {
  int64_t memory = 0;
  std::vector<int64_t> away = {};  // by lane

  int64_t& beyond(Home lane) {
    if (std::ssize(away) <= lane) away.resize(lane + 1);
    return away[lane];
  }
};

// So many bytes at the end of what is there, within one piece.
int64_t append(int64_t& end, int64_t bytes, const Limits& limits) {
  const int64_t at = limits.within_a_piece(end, limits.aligned(bytes));
  end = at + limits.aligned(bytes);
  return at;
}

// Residents of every program count: they are there, whichever program runs.
Ledger ledger_at(const Plan& plan, const Residents& residents, int op, const Limits& limits) {
  Ledger ledger;
  const auto count = [&](Purpose purpose, const std::string& layer, int64_t bytes) {
    ledger.purpose[static_cast<int>(purpose)] += limits.aligned(bytes);
    ledger.layer[layer][static_cast<int>(purpose)] += limits.aligned(bytes);
  };
  for (const auto& [name, resident] : residents) {
    if (resident.home != kOnDevice) continue;
    count(resident.purpose, resident.layer, resident.bytes);
  }
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Buffer& buffer = plan.program.buffers[i];
    if (plan.held[i].contains(op) && !buffer.resident && !buffer.away())
      count(buffer.purpose, buffer.layer, buffer.bytes());
  }
  return ledger;
}

void place_residents(Residents& residents, Ends& ends, const Program& program,
                     const Limits& limits) {
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.resident) continue;
    const auto [at, added] = residents.try_emplace(
        buffer.name, Resident{0, buffer.bytes(), buffer.purpose, buffer.layer, buffer.home});
    Resident& resident = at->second;
    require(resident.bytes == buffer.bytes() && resident.home == buffer.home,
            "resident {} has {} bytes in {} and {} elsewhere, or lies elsewhere", buffer.name,
            buffer.bytes(), program.name, resident.bytes);
    if (!added) continue;
    if (!buffer.away()) {
      resident.offset = append(ends.memory, buffer.bytes(), limits);
      continue;
    }
    resident.offset = ends.beyond(buffer.home);
    ends.beyond(buffer.home) += whole_blocks(buffer.bytes());
  }
}

void check_pieces(const Program& program, const Limits& limits) {
  for (const Buffer& b : program.buffers) {
    if (b.away() || b.is_view() || limits.aligned(b.bytes()) <= limits.piece_bytes) continue;
    fail(Exit::budget,
         fmt::format("plan: {} of {} has {}, and the device gives at most {} in one piece", b.name,
                     program.name, format_size(b.bytes()), format_size(limits.piece_bytes)),
         "a smaller --micro-batch or model has smaller tensors");
  }
}

// One block for each place, living as long as any buffer that has it.
std::vector<LiveBlock> places(const Program& program, const std::vector<Lifetime>& lives,
                              const std::vector<int>& place, const Limits& limits) {
  std::vector<LiveBlock> blocks(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.resident || buffer.away() || lives[i].empty()) continue;
    LiveBlock& block = blocks[place[i]];
    block.size = limits.aligned(buffer.bytes());
    block.life = block.life.empty() ? lives[i]
                                    : Lifetime{std::min(block.life.begin, lives[i].begin),
                                               std::max(block.life.end, lives[i].end)};
  }
  return blocks;
}

Plan make_plan(Program program, const Residents& residents, Ends ends, const Limits& limits,
               int haste) {
  Plan plan;
  plan.lives = lifetimes(program);
  const std::vector<int> place = shared_places(program, plan.lives);
  plan.held = held_lives(plan.lives, place);
  const std::vector<LiveBlock> blocks = places(program, plan.lives, place, limits);
  const Packing packing = pack(blocks, {ends.memory, limits.piece_bytes, haste});
  plan.offsets.resize(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.resident) {
      plan.offsets[i] = residents.at(buffer.name).offset;
    } else if (buffer.away()) {
      plan.offsets[i] = ends.beyond(buffer.home);
      ends.beyond(buffer.home) += whole_blocks(buffer.bytes());
    } else if (!buffer.is_view()) {
      plan.offsets[i] = ends.memory + packing.offsets[place[i]];
    }
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const View& view = program.buffers[i].view;
    if (view.of) plan.offsets[i] = plan.offsets[view.of.id] + view.offset;
  }
  plan.program = std::move(program);
  plan.away_bytes = ends.away;
  plan.resident_bytes = ends.memory;
  plan.bytes = ends.memory + packing.peak;
  plan.peak_op = fullest_op(blocks);
  plan.ledger = ledger_at(plan, residents, plan.peak_op, limits);
  plan.ledger.gap = plan.bytes - plan.ledger.total();
  return plan;
}

}  // namespace

int64_t Ledger::total() const {
  int64_t sum = gap;
  for (const int64_t bytes : purpose) sum += bytes;
  return sum;
}

const Plan& PlanSet::at(std::string_view program) const {
  const auto found = std::find_if(plans.begin(), plans.end(),
                                  [&](const Plan& plan) { return plan.program.name == program; });
  require(found != plans.end(), "plan: no program {}", program);
  return *found;
}

int64_t PlanSet::total_away_bytes() const {
  return std::accumulate(away_bytes.begin(), away_bytes.end(), int64_t{0});
}

PlanSet make_plans(std::vector<Program> programs, const Limits& limits, int haste) {
  Residents residents;
  Ends ends;
  for (const Program& program : programs) {
    check_pieces(program, limits);
    place_residents(residents, ends, program, limits);
  }
  PlanSet set;
  set.limits = limits;
  for (Program& program : programs) {
    set.plans.push_back(make_plan(std::move(program), residents, ends, limits, haste));
    const Plan& plan = set.plans.back();
    set.arena_bytes = std::max(set.arena_bytes, plan.bytes);
    set.away_bytes.resize(std::max(set.away_bytes.size(), plan.away_bytes.size()));
    for (size_t lane = 0; lane < plan.away_bytes.size(); ++lane) {
      set.away_bytes[lane] = std::max(set.away_bytes[lane], plan.away_bytes[lane]);
    }
  }
  for (const Plan& plan : set.plans) validate_plan(plan, set.arena_bytes, limits);
  return set;
}

namespace {

constexpr int64_t kSmall = 32;  // what a small allocation takes at least

int64_t text_bytes(const std::string& text) {
  return static_cast<int64_t>(text.capacity()) + kSmall;
}

}  // namespace

int64_t bookkeeping_bytes(const Op& op) {
  constexpr int64_t kBound = 128;  // the op with its places, without those
  const auto touched = static_cast<int64_t>(op.reads.size() + op.writes.size() + op.updates.size());
  return static_cast<int64_t>(sizeof(Op)) + kBound + text_bytes(op.name) + text_bytes(op.layer) +
         6 * kSmall + touched * static_cast<int64_t>(sizeof(Buf) + sizeof(void*));
}

int64_t bookkeeping_bytes(const Buffer& buffer) {
  constexpr int64_t kPlaces = 5 * sizeof(int64_t);  // offset, lives, ticket
  return static_cast<int64_t>(sizeof(Buffer)) + kPlaces + text_bytes(buffer.name) +
         text_bytes(buffer.layer) + 2 * kSmall;
}

int64_t bookkeeping_bytes(const PlanSet& plans) {
  int64_t bytes = 0;
  for (const Plan& plan : plans.plans) {
    for (const Op& op : plan.program.ops) bytes += bookkeeping_bytes(op);
    for (const Buffer& buffer : plan.program.buffers) bytes += bookkeeping_bytes(buffer);
  }
  return bytes;
}

int64_t planning_bytes(int64_t own_bytes, bool transfers) {
  // Seen: 0.95 and 1.75. A rewriting holds both programs.
  return own_bytes * (transfers ? 20 : 12) / 10;
}

std::string plan_csv(const Plan& plan, const Limits& limits) {
  std::string text = "id,lower,upper,size,offset\n";
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Lifetime& life = plan.held[i];
    if (life.empty()) continue;
    text += fmt::format("{},{},{},{},{}\n", plan.program.buffers[i].name, life.begin, life.end,
                        limits.aligned(plan.program.buffers[i].bytes()), plan.offsets[i]);
  }
  return text;
}

}  // namespace ebb
