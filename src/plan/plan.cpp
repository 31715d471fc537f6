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
  Purpose purpose;
  std::string layer;
  bool on_disk;
};
using Residents = std::unordered_map<std::string, Resident>;

// A buffer in the file begins with a block of it.
int64_t whole_blocks(int64_t bytes) {
  constexpr int64_t kBlock = 4096;
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// Where residents end.
struct Ends {
  int64_t memory = 0, disk = 0;
};

// Residents of every program count: they are there, whichever program runs.
Ledger ledger_at(const Plan& plan, const Residents& residents, int op) {
  Ledger ledger;
  const auto count = [&](Purpose purpose, const std::string& layer, int64_t bytes) {
    ledger.purpose[static_cast<int>(purpose)] += aligned(bytes);
    ledger.layer[layer][static_cast<int>(purpose)] += aligned(bytes);
  };
  for (const auto& [name, resident] : residents) {
    if (resident.on_disk) continue;
    count(resident.purpose, resident.layer, resident.bytes);
  }
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Buffer& buffer = plan.program.buffers[i];
    if (plan.held[i].contains(op) && !buffer.resident && !buffer.on_disk)
      count(buffer.purpose, buffer.layer, buffer.bytes());
  }
  return ledger;
}

void place_residents(Residents& residents, Ends& ends, const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.resident) continue;
    int64_t& end = buffer.on_disk ? ends.disk : ends.memory;
    const auto [at, added] = residents.try_emplace(
        buffer.name, Resident{end, buffer.bytes(), buffer.purpose, buffer.layer, buffer.on_disk});
    require(at->second.bytes == buffer.bytes() && at->second.on_disk == buffer.on_disk,
            "resident {} has {} bytes in {} and {} elsewhere, or lies elsewhere", buffer.name,
            buffer.bytes(), program.name, at->second.bytes);
    if (added) end += buffer.on_disk ? whole_blocks(buffer.bytes()) : aligned(buffer.bytes());
  }
}

// One block for each place, living as long as any buffer that has it.
std::vector<LiveBlock> places(const Program& program, const std::vector<Lifetime>& lives,
                              const std::vector<int>& place) {
  std::vector<LiveBlock> blocks(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.resident || buffer.on_disk || lives[i].empty()) continue;
    LiveBlock& block = blocks[place[i]];
    block.size = aligned(buffer.bytes());
    block.life = block.life.empty() ? lives[i]
                                    : Lifetime{std::min(block.life.begin, lives[i].begin),
                                               std::max(block.life.end, lives[i].end)};
  }
  return blocks;
}

Plan make_plan(Program program, const Residents& residents, const Ends& ends) {
  Plan plan;
  plan.disk_bytes = ends.disk;
  plan.lives = lifetimes(program);
  const std::vector<int> place = shared_places(program, plan.lives);
  plan.held = held_lives(plan.lives, place);
  const std::vector<LiveBlock> blocks = places(program, plan.lives, place);
  const Packing packing = pack(blocks);
  plan.offsets.resize(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.resident) {
      plan.offsets[i] = residents.at(buffer.name).offset;
    } else if (buffer.on_disk) {
      plan.offsets[i] = plan.disk_bytes;
      plan.disk_bytes += whole_blocks(buffer.bytes());
    } else if (!buffer.is_view()) {
      plan.offsets[i] = ends.memory + packing.offsets[place[i]];
    }
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const View& view = program.buffers[i].view;
    if (view.of) plan.offsets[i] = plan.offsets[view.of.id] + view.offset;
  }
  plan.program = std::move(program);
  plan.resident_bytes = ends.memory;
  plan.bytes = ends.memory + packing.peak;
  plan.peak_op = fullest_op(blocks);
  plan.ledger = ledger_at(plan, residents, plan.peak_op);
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
  Ends ends;
  for (const Program& program : programs) place_residents(residents, ends, program);
  PlanSet set;
  for (Program& program : programs) {
    set.plans.push_back(make_plan(std::move(program), residents, ends));
    set.disk_bytes = std::max(set.disk_bytes, set.plans.back().disk_bytes);
    set.arena_bytes = std::max(set.arena_bytes, set.plans.back().bytes);
  }
  for (const Plan& plan : set.plans) validate_plan(plan, set.arena_bytes);
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

std::string plan_csv(const Plan& plan) {
  std::string text = "id,lower,upper,size,offset\n";
  for (size_t i = 0; i < plan.program.buffers.size(); ++i) {
    const Lifetime& life = plan.held[i];
    if (life.empty()) continue;
    text += fmt::format("{},{},{},{},{}\n", plan.program.buffers[i].name, life.begin, life.end,
                        aligned(plan.program.buffers[i].bytes()), plan.offsets[i]);
  }
  return text;
}

}  // namespace ebb
