#include "plan/staged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "model/optimizer.h"
#include "model/slices.h"
#include "plan/profile.h"
#include "plan/rank_time.h"
#include "plan/stages.h"

namespace ebb {

std::vector<int64_t> balanced_cuts(const std::vector<double>& blocks, const StageEnds& ends,
                                   int stages) {
  const auto depth = std::ssize(blocks);
  // The least possible weight of the heaviest of the first s + 1 stages, when they have the first
  // `end` blocks, and where the last of them then begins.
  struct Cut {
    double heaviest = std::numeric_limits<double>::infinity();
    int64_t begin = 0;
  };
  std::vector<std::vector<Cut>> best(stages, std::vector<Cut>(depth + 1));
  for (int s = 0; s < stages; ++s) {
    for (int64_t end = s + 1; end <= depth; ++end) {
      double weight = (s == 0 ? ends.first : 0) + (s == stages - 1 ? ends.last : 0);
      for (int64_t begin = end - 1; begin >= s; --begin) {
        weight += blocks[begin];
        if (s == 0 && begin > 0) continue;
        const double before = s == 0 ? 0 : best[s - 1][begin].heaviest;
        const double heaviest = std::max(before, weight);
        if (heaviest < best[s][end].heaviest) best[s][end] = {heaviest, begin};
      }
    }
  }
  std::vector<int64_t> cuts(stages - 1);
  int64_t end = depth;
  for (int s = stages - 1; s > 0; --s) cuts[s - 1] = end = best[s][end].begin;
  return cuts;
}

namespace {

class StagedSearch {
 public:
  StagedSearch(const SearchCase& c, int64_t arena_bytes) : c_(c), arena_bytes_(arena_bytes) {}

  std::vector<Candidate> find() {
    for (const std::vector<int64_t>& cuts : cuts_worth_trying()) {
      for (const Choices& way : every_choice(c_)) offer(cuts, way);
    }
    std::stable_sort(made_.begin(), made_.end(), [&](const Candidate& a, const Candidate& b) {
      return arena_bytes_ > 0 ? weighted(a) < weighted(b) : a.bytes < b.bytes;
    });
    return std::move(made_);
  }

 private:
  // Stages that take turns without one micro-batch to spare wait for each other's every hitch,
  // which no simulation has: on 2 cores 1.45 s instead of 1.42 (decision 024).
  double weighted(const Candidate& made) const {
    constexpr double kHeldUp = 0.02;
    const bool held_up =
        c_.spec.place.pipe > 1 && made.choices.stage_order != StageOrder::late_ahead;
    return made.seconds * (1 + kReluctance * used_reluctantly(made.choices)) *
           (held_up ? 1 + kHeldUp : 1);
  }

  // By time and by the bytes of the state; embedding and final layer count.
  std::set<std::vector<int64_t>> cuts_worth_trying() const {
    const int64_t depth = c_.config.depth();
    std::vector<double> seconds(depth), bytes(depth);
    StageEnds second_ends, byte_ends;
    const auto add = [&](const std::string& layer, double value, std::vector<double>& blocks,
                         StageEnds& ends) {
      if (layer.starts_with("block")) {
        blocks[std::atoll(layer.c_str() + 5)] += value;
      } else {
        (layer == kEmbedding ? ends.first : ends.last) += value;
      }
    };
    for (const ParamSpec& p : parameters(c_.config)) {
      for (const StateBuffer& b : state_of(p, c_.spec, {})) {
        add(p.layer, static_cast<double>(b.bytes()), bytes, byte_ends);
      }
    }
    StepSpec alone = c_.spec;
    alone.place = {};
    alone.batch = 1;
    alone.leaves = 0;
    alone.update = false;
    const Program program = write_step(c_.config, alone, *c_.machine.device);
    const ProgramTime time(program, c_.machine);
    std::vector<int> marks = program.marks;
    marks.push_back(static_cast<int>(program.ops.size()));
    const auto stage = [&](int64_t i) { return time.of(marks[i], marks[i + 1]); };
    second_ends = {stage(0) + stage(2 * depth + 2), stage(1 + depth)};
    for (int64_t i = 0; i < depth; ++i) seconds[i] = stage(1 + i) + stage(1 + 2 * depth - i);
    const int stages = c_.spec.place.pipe;
    return {balanced_cuts(seconds, second_ends, stages), balanced_cuts(bytes, byte_ends, stages)};
  }

  // One way with these cuts, every stage with the most kept that fits.
  void offer(const std::vector<int64_t>& cuts, Choices way) {
    constexpr int64_t kMostParts = 64;  // each is written down by itself
    const int64_t samples = largest_segment(c_.spec);
    const bool decided = c_.decisions.micro_batch.has_value();
    const auto segments = std::ssize(c_.spec.segments());
    const bool stages = c_.spec.place.pipe > 1;
    if (stages && !decided && segments * micro_batch_count(samples, way.micro_batch) > kMostParts) {
      return;
    }
    // For the least memory: other orders have more under way.
    if (arena_bytes_ == 0 && !c_.decisions.stage_order && way.stage_order != StageOrder::in_turn) {
      return;
    }
    const std::vector<KeepSet>& options =
        options_for(micro_batches(samples, way.micro_batch)[0].size, way);
    std::vector<KeepSet> keep(c_.config.depth());
    std::vector<RankScript> scripts;
    Candidate made;
    int64_t exchanged = 0;
    for (int s = 0; s < c_.spec.place.pipe; ++s) {
      StepSpec spec = c_.spec;
      // The last group has no fewer samples than any other, and the last part of a block no fewer
      // heads.
      spec.place.rank = spec.place.ranks() - 1;
      spec.place.rank = spec.place.in_stage(s);
      spec.place.cuts = cuts;
      const auto written = [&](const KeepSet& kept) {
        const int64_t end = spec.place.end_block(c_.config.depth());
        for (int64_t i = spec.place.first_block(); i < end; ++i) keep[i] = kept;
        spec.choices = way;
        spec.choices.schedule = plain_schedule(keep);
        return write_step(c_.config, spec, *c_.machine.device);
      };
      const auto fits = [&](const KeepSet& kept) {
        return arena_bytes_ > 0 && arena_bytes_of(written(kept)) <= arena_bytes_;
      };
      // Under a tight budget most ways do not fit with the least kept: they are not looked at
      // further.
      if (arena_bytes_ > 0 && !fits(options.back())) return;
      // Bytes fall from option to option: the first that fits, or the last.
      const auto chosen = std::partition_point(options.begin(), options.end() - 1,
                                               [&](const KeepSet& kept) { return !fits(kept); });
      const Program program = written(*chosen);
      made.bytes = std::max(made.bytes, arena_bytes_of(program));
      made.own_bytes = std::max(made.own_bytes, own_bytes_of(program));
      exchanged = std::max(exchanged, exchange_bytes_of(program));
      scripts.push_back(of_one_part(
          script_of(spec.place.data == 1 ? program : of_one_group(spec), c_.machine), spec.place));
    }
    made.choices = std::move(way);
    made.choices.schedule = plain_schedule(keep);
    made.cuts = cuts;
    made.seconds = step_seconds(scripts, c_.machine.link);
    made.looking_bytes = planning_bytes(made.own_bytes, false);
    // What all ranks exchange, in steps and to draw, is kept until they have been played side by
    // side: with parts of every block that is most of a program.
    if (c_.spec.place.tensor > 1) made.looking_bytes += 3 * c_.spec.place.ranks() * exchanged;
    made_.push_back(std::move(made));
  }

  const std::vector<KeepSet>& options_for(int64_t micro_batch, const Choices& way) {
    const auto [at, added] =
        options_.try_emplace({micro_batch, way.storage.activation, way.cut_tokens});
    if (added) {
      at->second = c_.decisions.keep ? std::vector<KeepSet>{*c_.decisions.keep}
                                     : keep_options(c_.config, micro_batch, way, c_.machine,
                                                    c_.spec.place.tensor);
    }
    return at->second;
  }

  // As if there were no others: what groups exchange shows when all are played side by side.
  Program of_one_group(StepSpec spec) const {
    const int groups = spec.place.data;
    spec.batch = spec.share().count;
    spec.leaves /= groups;
    spec.place.rank = spec.place.at(0, spec.place.stage());
    spec.place.data = 1;
    spec.choices.shard = Shard::off;
    return write_step(c_.config, spec, *c_.machine.device);
  }

  // As if there were no ranks with other parts, which are alike: what comes from them takes its
  // time.
  RankScript of_one_part(RankScript script, const RankPlace& place) const {
    if (place.tensor == 1) return script;
    RankScript made;
    std::vector<int32_t> kept(script.messages.size(), -1);
    for (size_t i = 0; i < kept.size(); ++i) {
      RankMessage message = script.messages[i];
      if (place.part_of(message.peer) != place.part()) continue;
      message.peer = place.stage_of(message.peer);
      kept[i] = static_cast<int32_t>(made.messages.size());
      made.messages.push_back(std::move(message));
    }
    for (RankStep step : script.steps) {
      if (step.message >= 0 && kept[step.message] < 0) {
        const RankMessage& message = script.messages[step.message];
        if (step.kind != RankStep::Kind::wait || message.sends) continue;
        step = {c_.machine.link.seconds(message.bytes)};
      } else if (step.message >= 0) {
        step.message = kept[step.message];
      }
      made.steps.push_back(step);
    }
    return made;
  }

  // If packing leaves no gap.
  int64_t arena_bytes_of(const Program& program) const {
    const Limits limits = c_.machine.limits();
    int64_t resident = 0;
    for (const Buffer& b : program.buffers) {
      if (b.resident && !b.away()) resident += limits.aligned(b.bytes());
    }
    const LiveBytes live(program, limits, [](const Buffer&) { return true; });
    return resident + live.most(0, static_cast<int>(program.ops.size()));
  }

  static int64_t own_bytes_of(const Program& program) {
    int64_t own = 0;
    for (const Op& op : program.ops) own += bookkeeping_bytes(op);
    for (const Buffer& b : program.buffers) own += bookkeeping_bytes(b);
    return own;
  }

  static int64_t exchange_bytes_of(const Program& program) {
    int64_t bytes = 0;
    for (const Op& op : program.ops) {
      if (std::holds_alternative<Exchange>(op.params)) bytes += bookkeeping_bytes(op);
    }
    return bytes;
  }

  const SearchCase& c_;
  const int64_t arena_bytes_;
  std::map<std::tuple<int64_t, DType, bool>, std::vector<KeepSet>> options_;
  std::vector<Candidate> made_;
};

}  // namespace

std::vector<Candidate> staged_candidates(const DitConfig& config, const StepSpec& spec,
                                         const Decisions& decisions, const Machine& machine,
                                         int64_t arena_bytes) {
  if (spec.place.pipe > config.depth()) {
    fail(Exit::usage,
         fmt::format("--ranks pipe={}: more stages than the model's {} blocks", spec.place.pipe,
                     config.depth()),
         "each stage has at least one block");
  }
  if (const std::string why = cannot_slice(config, spec.place.tensor); !why.empty()) {
    fail(Exit::usage, fmt::format("--ranks tensor={}: {}", spec.place.tensor, why),
         "each rank has at least one head and one column of the MLP of every block that has them");
  }
  check_decisions(decisions, config, spec);
  return StagedSearch({config, spec, decisions, machine}, arena_bytes).find();
}

}  // namespace ebb
