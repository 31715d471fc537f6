#include "plan/rank_sum.h"

#include "base/error.h"
#include "plan/rank_check.h"
#include "plan/rank_time.h"

namespace ebb {

namespace {

Program exchanges_of(const Program& program) {
  Program kept;
  const auto keep = [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const Op& op = program.ops[i];
      if (std::holds_alternative<Exchange>(op.params)) kept.ops.push_back(op);
    }
    return static_cast<int>(kept.ops.size());
  };
  int next = 0;
  for (const Loop& loop : program.loops) {
    const int begin = keep(next, loop.begin);
    const int end = keep(loop.begin, loop.end);
    if (end > begin) kept.loops.push_back({begin, end, loop.count});
    next = loop.end;
  }
  keep(next, static_cast<int>(program.ops.size()));
  return kept;
}

}  // namespace

void RankSum::add(int rank, const PlannedRun& made, const Machine& machine) {
  const Program& program = made.step_plan().program;
  fits_ = fits_ && made.fits;
  bytes_[rank] = {made.process_bytes(), made.plans.arena_bytes, 0};
  steps_[rank] = exchanges_of(program);
  if (made.sampler) drawings_[rank] = exchanges_of(made.plans.at(kSamplerProgram).program);
  scripts_[rank] = script_of(program, machine);
}

void RankSum::finish(PlannedRun& own, const Machine& machine) {
  const auto check = [](const std::vector<Program>& programs) {
    std::vector<const Program*> all;
    for (const Program& each : programs) all.push_back(&each);
    return check_ranks(all);
  };
  const std::vector<int64_t> sent = check(steps_);
  check(drawings_);
  for (size_t r = 0; r < sent.size(); ++r) bytes_[r].sent_bytes = sent[r];
  own.seconds = step_seconds(scripts_, machine.link);
  own.fits = fits_;
  own.ranks = std::move(bytes_);
}

}  // namespace ebb
