#include "plan/profile.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "model/optimizer.h"
#include "plan/plan.h"
#include "plan/stages.h"

namespace ebb {

namespace {

// Of the residents: those of each of its blocks, which are alike, and all others.
struct ResidentOwn {
  int64_t of_block = 0, others = 0;

  ResidentOwn(const Program& program, int64_t blocks) {
    for (const Buffer& b : program.buffers) {
      if (b.resident) (b.layer.starts_with("block") ? of_block : others) += bookkeeping_bytes(b);
    }
    of_block /= blocks;
  }
};

// The parameters, and those of them whose state one rank has: where ranks share it, the one that
// has most.
struct Owned {
  std::vector<ParamSpec> all;
  std::vector<const ParamSpec*> trained;

  Owned(const DitConfig& config, const StepSpec& spec, const Choices& choices)
      : all(parameters(config)) {
    const std::vector<int> owner = owners(all, spec.place, choices.shard);
    std::map<int, int64_t> numbers;
    size_t next = 0;
    for (const ParamSpec& p : all) {
      if (p.trained()) numbers[owner[next++]] += p.count();
    }
    const auto fullest =
        std::max_element(numbers.begin(), numbers.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    next = 0;
    for (const ParamSpec& p : all) {
      if (p.trained() && owner[next++] == fullest->first) trained.push_back(&p);
    }
  }
  bool has(const ParamSpec& p) const {
    return !p.trained() || std::find(trained.begin(), trained.end(), &p) != trained.end();
  }
};

int64_t gradient_bytes(const Owned& owned, const Storage& storage, const Limits& limits) {
  int64_t bytes = 0;
  for (const ParamSpec* p : owned.trained) {
    const int64_t n = element_count(storage.gradient_shape(*p));
    bytes += limits.aligned(n * dtype_bytes(storage.gradient_of(*p)));
  }
  return bytes;
}

}  // namespace

int64_t state_bytes(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                    const Limits& limits) {
  const Offload& offload = choices.offload;
  int64_t bytes = limits.aligned(spec.feeding.memory_bytes) +
                  (offload.any() ? limits.aligned(offload.memory_bytes) : 0);
  const Owned owned(config, spec, choices);
  Choices sharded = choices;
  sharded.shard = Shard::grads;
  const Owned adding(config, spec, sharded);  // up what the groups send
  for (const ParamSpec& p : owned.all) {
    const bool own = owned.has(p);
    for (const StateBuffer& b : state_of(p, spec, choices.storage)) {
      // The weight and its mask, unless they lie with their owner.
      const bool of_all = choices.shard != Shard::weights && (b.prefix.empty() || !b.updated());
      if (!own && !of_all) continue;
      if (!b.updated() || !offload.takes(p, b.purpose)) bytes += limits.aligned(b.bytes());
    }
    if (spec.place.data == 1) continue;
    const bool told = choices.storage.exchange.freezes() && choices.storage.sends_coded(p);
    if (told && !own) bytes += limits.aligned(4 * p.count());  // its momentum
    for (const StateBuffer& b : exchange_state(p, choices.storage, spec.place.group())) {
      const bool away = offload.takes_rest(p) && rest_in(b.prefix + p.name).has_value();
      const bool here = b.prefix != kSumRest || adding.has(adding.all[&p - owned.all.data()]);
      if (here && !away) bytes += limits.aligned(b.bytes());
    }
  }
  return bytes;
}

double update_seconds(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                      const Machine& machine) {
  const Storage& storage = choices.storage;
  double seconds = 0;
  const Owned owned(config, spec, choices);
  for (const ParamSpec* p : owned.trained) {
    seconds += machine.costs.seconds(update_op(*p, spec, storage));
    if (in_group(*p, spec)) {
      seconds += machine.costs.seconds(squares_op(*p, config, spec, storage, true));
    }
    if (shrinks(*p, spec)) seconds += machine.costs.seconds(shrink_op(*p, config, spec, storage));
  }
  return seconds;
}

namespace {

// What is away comes for its update, or to be coded, and goes again.
double visiting_seconds(const Owned& owned, const StepSpec& spec, const Choices& choices,
                        const Machine& machine) {
  const Offload& offload = choices.offload;
  double seconds = 0;
  const auto visit = [&](const StateBuffer& b, int times) {
    for (const Transfer::Part part : {Transfer::Part::fetch_begin, Transfer::Part::store_begin}) {
      seconds += times *
                 machine.lanes.at(offload.lane).seconds({part, b.bytes(), DType::u8, offload.lane});
    }
  };
  for (const ParamSpec* p : owned.trained) {
    for (const StateBuffer& b : state_of(*p, spec, choices.storage)) {
      if (b.updated() && offload.takes(*p, b.purpose)) visit(b, 1);
    }
  }
  if (spec.place.data == 1) return seconds;
  for (const ParamSpec& p : owned.all) {
    if (!offload.takes_rest(p)) continue;
    for (const StateBuffer& b : exchange_state(p, choices.storage, spec.place.group())) {
      if (b.prefix != kWarm) visit(b, choices.storage.exchange.rest_visits());
    }
  }
  return seconds;
}

// Zeroing all gradients before a loop, and the update behind everything: a matter of the tensors.
double state_seconds(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                     bool zeroing, bool update, const Machine& machine) {
  const CostModel& costs = machine.costs;
  double zeros = costs.seconds(Zero{1}), norms = 0;
  const Owned owned(config, spec, choices);
  for (const ParamSpec* p : owned.trained) {
    const Storage& storage = choices.storage;
    const int64_t n = element_count(storage.gradient_shape(*p));
    if (zeroing) zeros += costs.seconds(Zero{n, storage.gradient_of(*p)});
    norms += costs.seconds(norm_op(*p, storage, 0));
  }
  if (!update) return zeros;
  const auto trained = std::count_if(owned.all.begin(), owned.all.end(),
                                     [](const ParamSpec& p) { return p.trained(); });
  const double ops = norms + update_seconds(config, spec, choices, machine) +
                     costs.seconds(ClipScale{0, trained, 0});
  return zeros + std::max(ops, visiting_seconds(owned, spec, choices, machine));
}

}  // namespace

namespace {

// One profile is made of the stages of a program for each shape.
class Profiler {
 public:
  Profiler(const DitConfig& config, const StepSpec& spec, const Choices& choices,
           const std::vector<KeepSet>& keep_options, const Machine& machine)
      : config_(config),
        spec_(spec),
        choices_(choices),
        machine_(machine),
        // All gradients live through a loop over whole steps; otherwise they come and go with their
        // block.
        all_gradients_((accumulates(spec, choices.micro_batch) || spec.segments().size() > 1) &&
                       !choices.layer_major),
        coded_(spec.place.data > 1 && choices.storage.exchange.any()),
        shared_(choices.shard != Shard::off || coded_),
        late_update_(spec.update && !choices.release) {
    p_.options = keep_options;
  }

  Profile make() {
    const Shapes shapes(config_);
    p_.shape_at = shapes.at;
    const Limits limits = machine_.limits();
    state_ = state_bytes(config_, spec_, choices_, limits);
    if (gradients_stay()) {
      state_ += gradient_sets() *
                gradient_bytes(Owned(config_, spec_, gradients_of()), choices_.storage, limits);
    }
    for (size_t s = 0; s < shapes.all.size(); ++s) {
      add(shapes.all[s], std::count(shapes.at.begin(), shapes.at.end(), static_cast<int>(s)));
    }
    p_.input_bytes = std::max<int64_t>(0, p_.shapes[0].forward.back().delta);
    p_.fixed_seconds +=
        state_seconds(config_, spec_, choices_, all_gradients_, late_update_, machine_);
    p_.fixed_own_bytes += p_.update.own_bytes;
    return std::move(p_);
  }

 private:
  bool gradients_stay() const { return all_gradients_ || (shared_ && !choices_.release); }

  // Of those that wait to be coded each makes room for its sum.
  Choices gradients_of() const {
    Choices choices = choices_;
    const bool wait = coded_ && (all_gradients_ || choices.storage.exchange.feedback);
    if (wait) choices.shard = Shard::off;
    return choices;
  }

  // Sums that wait for their neighbours in a tree, batch by batch, and the one that is being made.
  int64_t gradient_sets() const {
    int64_t sets = 1;
    if (!all_gradients_) return sets;
    for (auto leaves = std::ssize(spec_.segments()); leaves > 1; leaves /= 2) ++sets;
    return sets;
  }

  // The blocks of one shape, each with another keep-set; `count` of the model's have it.
  void add(const BlockShape& shape, int64_t count) {
    // What is fetched ahead for a block is alive in the stage before it: with transfers, one more
    // block at either end gives all that are looked at neighbours like themselves.
    const int64_t ends = choices_.offload.any() ? 1 : 0;
    std::vector<KeepSet> keep(ends, p_.options.back());
    keep.insert(keep.end(), p_.options.begin(), p_.options.end());
    keep.insert(keep.end(), ends, p_.options.back());
    const auto blocks = static_cast<int64_t>(keep.size());
    DitConfig sampled = config_;
    sampled.blocks.assign(keep.size(), shape);
    StepSpec written = spec_;
    written.choices = choices_;
    written.choices.schedule = plain_schedule(keep);
    const Program program = write_step(sampled, written, *machine_.device);
    note_looking(program);

    // Which blocks' sums end with a rank, and which weights are brought to it, is a matter of the
    // whole model: the sums count as there all along, and so does the most that is on its way.
    // Rests that come from a lane do so behind the backward pass alone.
    const auto on_its_way = [](const Buffer& b) {
      return b.purpose == Purpose::exchange && !b.resident && !rest_in(b.name);
    };
    const bool two_passes = spec_.update && choices_.release && spec_.norm_first();
    const Stages stages(program, 2 * blocks + 3, two_passes, machine_, [&](const Buffer& b) {
      const bool gradient = b.purpose == Purpose::gradient;
      return !on_its_way(b) && (!gradient || !gradients_stay());
    });
    if (p_.shapes.empty()) {
      state_ += LiveBytes(program, machine_.limits(), on_its_way)
                    .most(0, static_cast<int>(program.ops.size()));
    }
    Profile::OfShape made;
    for (int64_t i = 0; i < std::ssize(p_.options); ++i) {
      made.forward.push_back(stages.stage(1 + ends + i));
      made.backward.push_back(stages.stage(1 + blocks + (blocks - ends - i)));
    }
    if (ends > 0) {
      const int64_t first =
          stages.stage(2 + blocks).delta;  // of the last block, which keeps as much
      p_.first_stored = std::max(p_.first_stored, first - made.backward.back().delta);
    }
    const ResidentOwn own(program, blocks);
    if (p_.shapes.empty()) note_others(stages, blocks, own);
    p_.shapes.push_back(std::move(made));
    p_.fixed_own_bytes += own.of_block * count;
    if (!late_update_) return;
    const auto last = static_cast<int64_t>(program.marks.size()) - 1;
    p_.update.peak = std::max(p_.update.peak, stages.stage(last).peak);
    p_.update.own_bytes += stages.own_bytes_of(last) / blocks * count;
  }

  // What does not depend on the blocks.
  void note_others(const Stages& stages, int64_t blocks, const ResidentOwn& own) {
    p_.embed_peak = state_ + stages.most_before(1);
    p_.start_bytes = state_ + stages.across(1);
    p_.turn = stages.stage(1 + blocks);
    p_.embed_backward = stages.stage(2 * blocks + 2);
    p_.fixed_seconds = stages.stage(0).seconds + p_.embed_backward.seconds;
    p_.fixed_own_bytes = stages.stage(0).own_bytes + p_.embed_backward.own_bytes + own.others;
  }

  void note_looking(const Program& program) {
    int64_t own = 0;
    for (const Op& op : program.ops) own += bookkeeping_bytes(op);
    for (const Buffer& b : program.buffers) own += bookkeeping_bytes(b);
    p_.looking_bytes = std::max(p_.looking_bytes, planning_bytes(own, choices_.offload.any()));
  }

  const DitConfig& config_;
  const StepSpec& spec_;
  const Choices& choices_;
  const Machine& machine_;
  const bool all_gradients_, coded_, shared_, late_update_;
  int64_t state_ = 0;
  Profile p_;
};

}  // namespace

Profile profile_step(const DitConfig& config, const StepSpec& spec, const Choices& choices,
                     const std::vector<KeepSet>& keep_options, const Machine& machine) {
  return Profiler(config, spec, choices, keep_options, machine).make();
}

}  // namespace ebb
