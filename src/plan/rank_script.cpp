#include "plan/rank_script.h"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace ebb {

namespace {

template <typename T, typename... Types>
constexpr bool is_one_of = (std::is_same_v<T, Types> || ...);

Work work_of(const Op& op, const Program& program) {
  return std::visit(
      [&]<typename T>(const T&) {
        if (is_one_of<T, SquaredNorm, ClipScale, AdamW, Lion, Adafactor, StructureSquares, Shrink,
                      LabelRowsNorm, LabelRowsUpdate, LabelRowsCatchUp>)
          return Work::update;
        if (is_one_of<T, LinearBackwardParams, LabelEmbedBackward, LabelRowsBackward, AddLabelRows,
                      EncodeBf16, EncodeBf16Feedback, AddBf16, EncodeInt8, AddInt8, EncodeTopK,
                      AddTopK, PowerProject, Orthonormalize, PowerBack, PowerSum, PowerKeep,
                      GateCodes, SignEncode, SignAdd, SignMomentum, SignKeep>)
          return Work::matrices;
        if (is_one_of<T, LinearBackwardInput, UnpatchifyBackward, SiluBackward, AdaLNBackward,
                      AddGatedBackward, QkNormBackward, AttentionBackward>)
          return Work::backward;
        if (!is_one_of<T, AddTo, Zero>) return Work::forward;
        const Buf changed = op.writes.empty() ? op.updates.at(0) : op.writes[0];
        const Purpose purpose = program.buffer(changed).purpose;
        return purpose == Purpose::gradient || purpose == Purpose::exchange ? Work::matrices
                                                                            : Work::backward;
      },
      op.params);
}

// Computing, one stretch after the other.
class Stretches {
 public:
  void add(double seconds, Work work) {
    if (seconds <= 0) return;
    if (all_.empty() || all_.back().work != work) {
      all_.push_back({seconds, -1, RankStep::Kind::compute, work});
    } else {
      all_.back().seconds += seconds;
    }
  }
  // So long, where a lane takes longer than the ops.
  void stretch_to(double seconds) {
    double own = 0;
    for (const RankStep& each : all_) own += each.seconds;
    if (seconds <= own) return;
    if (all_.empty()) add(seconds, Work::forward);
    for (RankStep& each : all_) each.seconds *= own > 0 ? seconds / own : 1;
  }
  void take(Stretches& other) {
    for (const RankStep& each : other.all_) add(each.seconds, each.work);
    other.all_.clear();
  }
  void move_to(std::vector<RankStep>& steps) {
    steps.insert(steps.end(), all_.begin(), all_.end());
    all_.clear();
  }

 private:
  std::vector<RankStep> all_;
};

class ScriptWriter {
 public:
  ScriptWriter(const Program& program, const Machine& machine, ScriptCut cut)
      : program_(program), machine_(machine), cut_(cut), lanes_(machine.lanes.size()) {
    for (const Op& op : program.ops) uses_lanes_ |= std::holds_alternative<Transfer>(op.params);
  }

  RankScript write() {
    int next = 0;
    for (const Loop& loop : program_.loops) {
      ops(next, loop.begin, 1);
      // Other ranks do not see how a loop without messages comes to its seconds.
      const bool all_at_once = cut_ == ScriptCut::messages && !has_messages(loop);
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
        stage_.add(often * machine_.costs.seconds(params),
                   cut_ == ScriptCut::works ? work_of(program_.ops[i], program_) : Work::forward);
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
      stage_.stretch_to(slowest);
      before_.take(stage_);
      return;
    }
    exchanged_ = false;
    if (slowest == 0) return;
    compute();
    script_.steps.push_back({slowest, -1, RankStep::Kind::stage});
  }

  void compute() {
    before_.take(stage_);
    before_.move_to(script_.steps);
  }

  // ---- messages --------------------------------------------------------------------------------

  void add_exchange(const Op& op, const Exchange& exchange) {
    if (uses_lanes_ && !exchanged_) {  // where the stage begins
      Stretches stage = std::exchange(stage_, {});
      compute();
      script_.steps.push_back({0, -1, RankStep::Kind::stage});
      stage_ = std::move(stage);
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
  const ScriptCut cut_;
  RankScript script_;
  std::map<int32_t, int32_t> open_;  // messages by buffer
  bool uses_lanes_ = false;
  std::ptrdiff_t stage_index_ = 0;
  bool exchanged_ = false;     // within the stage
  Stretches before_;           // of stages that are over, not in a step yet,
  Stretches stage_;            // and of the stage's own ops
  std::vector<double> lanes_;  // within the stage
};

}  // namespace

RankScript script_of(const Program& program, const Machine& machine, ScriptCut cut) {
  return ScriptWriter(program, machine, cut).write();
}

}  // namespace ebb
