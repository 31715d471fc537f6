#include "plan/rank_script.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace ebb {

namespace {

class ScriptWriter {
 public:
  ScriptWriter(const Program& program, const Machine& machine)
      : program_(program), machine_(machine), lanes_(machine.lanes.size()) {
    for (const Op& op : program.ops) uses_lanes_ |= std::holds_alternative<Transfer>(op.params);
  }

  RankScript write() {
    int next = 0;
    for (const Loop& loop : program_.loops) {
      ops(next, loop.begin, 1);
      // Nobody sees how a loop without messages comes to its seconds.
      const bool all_at_once = !has_messages(loop);
      for (int64_t i = 0; i < (all_at_once ? 1 : loop.count); ++i) {
        ops(loop.begin, loop.end, all_at_once ? loop.count : 1);
      }
      next = loop.end;
    }
    ops(next, static_cast<int>(program_.ops.size()), 1);
    end_stage();
    compute();
    for (const auto& [buffer, message] : open_) {
      throw Bug("ranks: " + script_.messages[message].name + " is begun and not waited for");
    }
    script_.steps.shrink_to_fit();
    script_.messages.shrink_to_fit();
    return std::move(script_);
  }

 private:
  bool has_messages(const Loop& loop) const {
    return std::any_of(program_.ops.begin() + loop.begin, program_.ops.begin() + loop.end,
                       [](const Op& op) { return std::holds_alternative<Exchange>(op.params); });
  }

  void ops(int begin, int end, int64_t times) {
    const auto often = static_cast<double>(times);
    for (int i = begin; i < end; ++i) {
      enter_stage(i);
      const OpParams& params = program_.ops[i].params;
      if (const auto* exchange = std::get_if<Exchange>(&params)) {
        add_exchange(program_.ops[i], *exchange);
      } else if (const auto* transfer = std::get_if<Transfer>(&params)) {
        lanes_.at(transfer->lane) += often * machine_.lanes[transfer->lane].seconds(*transfer);
      } else {
        stage_ += often * machine_.costs.seconds(params);
      }
    }
  }

  // ---- stages ----------------------------------------------------------------------------------

  void enter_stage(int op) {
    const auto& marks = program_.marks;
    const auto stage = std::upper_bound(marks.begin(), marks.end(), op) - marks.begin();
    if (stage == stage_index_) return;
    end_stage();
    stage_index_ = stage;
  }

  void end_stage() {
    double slowest = 0;
    for (double& lane : lanes_) slowest = std::max(slowest, std::exchange(lane, 0.0));
    if (!exchanged_) {
      before_ += std::max(std::exchange(stage_, 0.0), slowest);
      return;
    }
    exchanged_ = false;
    if (slowest == 0) return;
    compute();
    script_.steps.push_back({slowest, -1, RankStep::Kind::stage});
  }

  void compute() {
    const double seconds = std::exchange(before_, 0.0) + std::exchange(stage_, 0.0);
    if (seconds > 0) script_.steps.push_back({seconds, -1, RankStep::Kind::compute});
  }

  // ---- messages --------------------------------------------------------------------------------

  void add_exchange(const Op& op, const Exchange& exchange) {
    if (uses_lanes_ && !exchanged_) {  // where the stage begins
      const double stage = std::exchange(stage_, 0.0);
      compute();
      script_.steps.push_back({0, -1, RankStep::Kind::stage});
      stage_ = stage;
    }
    exchanged_ = true;
    compute();
    const Buf buffer = !op.reads.empty()    ? op.reads[0]
                       : !op.writes.empty() ? op.writes[0]
                                            : op.updates.at(0);
    exchange.begins() ? begin(op, exchange, buffer.id) : wait(op, buffer.id);
  }

  void begin(const Op& op, const Exchange& exchange, int32_t buffer) {
    const auto message = static_cast<int32_t>(script_.messages.size());
    require(open_.emplace(buffer, message).second, "ranks: {} begins what is on its way", op.name);
    script_.messages.push_back(
        {op.name, exchange.bytes(), exchange.peer, exchange.channel, exchange.sends()});
    script_.steps.push_back({0, message, RankStep::Kind::begin});
  }

  void wait(const Op& op, int32_t buffer) {
    const auto found = open_.find(buffer);
    require(found != open_.end(), "ranks: {} waits for nothing", op.name);
    script_.steps.push_back({0, found->second, RankStep::Kind::wait});
    open_.erase(found);
  }

  const Program& program_;
  const Machine& machine_;
  RankScript script_;
  std::map<int32_t, int32_t> open_;  // messages by buffer
  bool uses_lanes_ = false;
  std::ptrdiff_t stage_index_ = 0;
  bool exchanged_ = false;     // within the stage
  double before_ = 0;          // seconds of stages that are over, not in a step yet
  double stage_ = 0;           // and of the stage's own ops
  std::vector<double> lanes_;  // within the stage
};

}  // namespace

RankScript script_of(const Program& program, const Machine& machine) {
  return ScriptWriter(program, machine).write();
}

}  // namespace ebb
