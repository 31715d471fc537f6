// The exact techniques: they change no bit of any result.
#include <algorithm>

#include "model/tensor_peers.h"
#include "plan/technique_kinds.h"

namespace ebb {

namespace {

// The batch in 1, 2, 3, 4, 6, 8, 12, 16 ... parts, as equal as they can be.
std::vector<int64_t> micro_batch_sizes(int64_t batch) {
  std::vector<int64_t> sizes;
  for (int64_t power = 1; power <= batch; power *= 2) {
    for (const int64_t parts : {power, power + power / 2}) {
      const int64_t size = (batch + parts - 1) / parts;
      if (sizes.empty() || size < sizes.back()) sizes.push_back(size);
    }
  }
  return sizes;
}

constexpr const char* kCheap = "attn-in+mlp-in+gelu+x1";  // no matrix product makes any of these

}  // namespace

Technique micro_batches_technique() {
  Technique t{"accumulate", Exactness::exact, "micro-batch", "N|auto",
              "samples that go through the network together"};
  t.decide = [](Decisions& d, const std::string& word, const std::string& where) {
    d.micro_batch = std::nullopt;
    if (word == kAuto) return;
    constexpr int64_t kMost = 1 << 20;
    const int64_t size = parse_int(word, where);
    if (size < 1 || size > kMost) {
      fail(Exit::usage, fmt::format("{}: found {}, wanted 1 to {}", where, size, kMost));
    }
    d.micro_batch = size;
  };
  t.decided = [](const Decisions& d) {
    return d.micro_batch ? fmt::format("{}", *d.micro_batch) : kAuto;
  };
  t.settle = [](Decisions& d, const Choices& c) { d.micro_batch = c.micro_batch; };
  t.offer = [](const Choices& before, const SearchCase& c) {
    return each_of<int64_t>(before, micro_batch_sizes(largest_segment(c.spec)),
                            c.decisions.micro_batch,
                            [](Choices& made) -> int64_t& { return made.micro_batch; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    if (!accumulates(spec, spec.choices.micro_batch)) return "";
    const std::vector<Part> parts = micro_batches(largest_segment(spec), spec.choices.micro_batch);
    const std::string equal = fmt::format("{} x {}", parts[0].count, parts[0].size);
    return parts.size() == 1 ? equal : fmt::format("{} + {}", equal, parts[1].size);
  };
  t.rows = [](int64_t batch) {
    std::vector<ComparedRow> rows;
    const int64_t quarter = std::max<int64_t>(1, batch / 4);
    for (const int64_t size : {quarter, int64_t{1}}) {
      if (size >= batch || (!rows.empty() && size == quarter)) continue;
      const std::string word = fmt::format("{}", size);
      rows.push_back({"micro-batch " + word, {{"micro-batch", word}}});
    }
    return rows;
  };
  return t;
}

Technique order_technique() {
  Technique t{"layer-major", Exactness::exact, "order", "",
              "micro-batches one after the other, or layer by layer"};
  decide_by<bool>({{"batch", false}, {"layer", true}}, &Decisions::layer_major, t);
  // With one micro-batch both orders are the same. Of ranks, each would wait for all micro-batches
  // of the one before it, batch by batch; of stages, each would hold the inputs of all.
  t.offer = [](const Choices& before, const SearchCase& c) {
    const bool several = accumulates(c.spec, before.micro_batch);
    const bool waits =
        several && c.spec.place.data > 1 && c.spec.leaves == 0 && !before.storage.exchange.any();
    if (waits && !c.decisions.layer_major.value_or(true)) return std::vector<Choices>();
    const bool either = several && c.spec.place.pipe == 1;
    return each_of<bool>(before,
                         waits    ? std::vector{true}
                         : either ? std::vector{false, true}
                                  : std::vector{false},
                         c.decisions.layer_major,
                         [](Choices& made) -> bool& { return made.layer_major; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) {
    const Choices& c = spec.choices;
    return c.layer_major && accumulates(spec, c.micro_batch) ? "on" : "";
  };
  t.off = "batch";
  return t;
}

Technique release_technique() {
  Technique t{"release", Exactness::exact, "release", "",
              "update each parameter as soon as its gradient is complete"};
  decide_by<bool>({{"on", true}, {"off", false}}, &Decisions::release, t);
  t.offer = [](const Choices& before, const SearchCase& c) {
    const bool several = accumulates(c.spec, before.micro_batch);
    std::vector<Choices> all;
    for (const bool release : {false, true}) {
      if (c.decisions.release.value_or(release) != release) continue;
      if (release && (!c.spec.update || (several && !before.layer_major))) continue;
      const bool parts = c.spec.place.pipe > 1 || c.spec.place.tensor > 1 || c.spec.leaves > 0;
      if (release && parts) continue;
      if (release && before.storage.exchange.any()) continue;
      // Without release the order of layers only takes memory, but for ranks and trees of sums.
      const bool asked =
          c.decisions.layer_major.has_value() || !c.spec.place.alone() || c.spec.leaves > 0;
      if (!release && before.layer_major && !asked) continue;
      all.push_back(before);
      all.back().release = release;
    }
    return all;
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) {
    if (!spec.choices.release || !spec.update) return "";
    return spec.norm_first() ? "two passes" : "one pass";
  };
  t.off = "off";
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"release", {{"release", "on"}}, "two passes: clipping needs the norm first"},
            {"release, --clip 0",
             {{"release", "on"}, {"clip", "0"}},
             "one pass: for training that does not clip"}};
  };
  return t;
}

Technique recompute_technique() {
  Technique t{"recompute", Exactness::exact, "recompute", "auto|none|all|A+B",
              "tensors that every block computes again in its backward pass"};
  t.decide = [](Decisions& d, const std::string& word, const std::string& where) {
    d.keep = std::nullopt;
    if (word != kAuto) d.keep = KeepSet::all_but(word, where);
  };
  t.decided = [](const Decisions& d) { return d.keep ? d.keep->recomputed() : kAuto; };
  t.setting = [](const DitConfig& config, const StepSpec& spec) -> std::string {
    const auto again = block_choices(spec.choices.schedule, config.depth());
    const int64_t kept = std::count(again.begin(), again.end(), BlockChoice{KeepSet::all(), 1});
    if (spec.choices.schedule.empty() || kept == config.depth()) return "";
    return fmt::format("{} of {} blocks", config.depth() - kept, config.depth());
  };
  t.off = "none";
  t.rows = [](int64_t batch) {
    std::vector<ComparedRow> rows = {
        {"recompute cheap tensors", {{"recompute", kCheap}}},
        {"recompute all", {{"recompute", "all"}}},
        {"recompute cheap tensors + release", {{"recompute", kCheap}, {"release", "on"}}}};
    if (batch == 1) return rows;
    const std::string quarter = fmt::format("{}", std::max<int64_t>(1, batch / 4));
    rows.push_back({fmt::format("micro-batch {} + recompute all", quarter),
                    {{"recompute", "all"}, {"micro-batch", quarter}}});
    // Layer by layer the blocks of the whole batch wait for their backward pass together: that is
    // only small when they keep nothing.
    rows.push_back(
        {"micro-batch 1 + recompute all + layer-major + release",
         {{"recompute", "all"}, {"micro-batch", "1"}, {"order", "layer"}, {"release", "on"}}});
    return rows;
  };
  return t;
}

// Moments, average and gradients of a parameter with one rank alone.
Technique shard_technique() {
  Technique t{
      "shard", Exactness::exact, "shard", "",
      "over ranks: what lies with one of them alone; state: as grads, since sums of gradients "
      "end with their owner anyway; weights: of every parameter all"};
  decide_by<Shard>({{"off", Shard::off},
                    {"grads", Shard::grads},
                    {"state", Shard::grads},
                    {"weights", Shard::weights}},
                   &Decisions::shard, t);
  t.settle = [](Decisions& d, const Choices& c) {
    if (c.shard != Shard::off) d.shard = c.shard;
  };
  t.offer = [](const Choices& before, const SearchCase& c) {
    std::vector<Shard> kinds = {Shard::off};
    if (c.spec.place.data > 1 && c.spec.group_lasso == 0) kinds.push_back(Shard::grads);
    // Batch by batch all weights would be brought for every micro-batch.
    const bool again = c.spec.place.pipe == 1 && !before.layer_major &&
                       (accumulates(c.spec, before.micro_batch) || c.spec.segments().size() > 1);
    if (kinds.size() > 1 && !again) kinds.push_back(Shard::weights);
    if (again && c.decisions.shard == Shard::weights) return std::vector<Choices>();
    return each_of<Shard>(before, kinds, c.decisions.shard,
                          [](Choices& made) -> Shard& { return made.shard; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    if (spec.choices.shard == Shard::off) return "";
    return fmt::format("{}moments, average, gradients over {}",
                       spec.choices.shard == Shard::weights ? "weights, " : "", spec.place.data);
  };
  t.of_ranks = true;
  return t;
}

// What a stage does when: with the gradients of matrices where it would wait, or at once, and by
// how much it may be ahead.
Technique stage_order_technique() {
  Technique t{"late matrices", Exactness::exact, "stage-order", "",
              "of a pipeline: the gradients of matrices at once, or where a stage would wait; +1: "
              "with one more micro-batch under way"};
  using Order = StageOrder;
  decide_by<Order>(
      {{"1f1b", Order::in_turn}, {"zb-h1", Order::late}, {"zb-h1+1", Order::late_ahead}},
      &Decisions::stage_order, t);
  t.offer = [](const Choices& before, const SearchCase& c) {
    const bool can = c.spec.place.pipe > 1;
    if (!can && c.decisions.stage_order.value_or(Order::in_turn) != Order::in_turn) {
      return std::vector<Choices>();
    }
    return each_of<Order>(before,
                          can ? std::vector{Order::in_turn, Order::late, Order::late_ahead}
                              : std::vector{Order::in_turn},
                          c.decisions.stage_order,
                          [](Choices& made) -> Order& { return made.stage_order; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    switch (spec.choices.stage_order) {
      case Order::in_turn:
        return "";
      case Order::late:
        return "ZB-H1";
      case Order::late_ahead:
        return "ZB-H1, one micro-batch more";
    }
    return "";
  };
  t.of_ranks = true;
  return t;
}

// Ranks that have parts of the same blocks. Their sums are added in another order than one rank's.
Technique tensor_technique() {
  Technique t{"parts of blocks", Exactness::rounding, "ranks"};
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    const int parts = spec.place.tensor;
    return parts > 1 ? fmt::format("heads, MLP and modulation over {}", parts) : "";
  };
  t.of_ranks = true;
  return t;
}

// Of ranks that have parts of the same blocks each has all rows between the products of these, or
// those of its own samples. Sums are the same, made by another rank at most.
Technique tokens_technique() {
  Technique t{
      "cut tokens", Exactness::exact, "tokens", "",
      "of ranks with parts of blocks: what lies around the norms whole on each, or cut, each "
      "with the tokens of its own samples"};
  decide_by<bool>({{"whole", false}, {"cut", true}}, &Decisions::cut_tokens, t);
  t.settle = [](Decisions& d, const Choices& c) {
    if (c.cut_tokens) d.cut_tokens = true;
  };
  t.offer = [](const Choices& before, const SearchCase& c) {
    const bool can = can_cut_tokens(samples_together(c.spec, before.micro_batch), c.spec.place);
    if (!can && c.decisions.cut_tokens.value_or(false)) return std::vector<Choices>();
    return each_of<bool>(before, can ? std::vector{false, true} : std::vector{false},
                         c.decisions.cut_tokens,
                         [](Choices& made) -> bool& { return made.cut_tokens; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    return spec.choices.cut_tokens ? fmt::format("by samples over {}", spec.place.tensor) : "";
  };
  t.of_ranks = true;
  return t;
}

// A parameter's state goes away after its update: with release while the next layer runs, else
// while the next tensor is updated. So does what a code has not sent of its gradient, while the
// next is coded. A stage keeps what it gets from others where it came.
Technique offload_technique() {
  Technique t{"offload", Exactness::exact, "offload"};
  t.offer = [](const Choices& before, const SearchCase& c) {
    std::vector<Choices> all = {before};
    const bool stage = c.spec.place.pipe > 1;
    const bool keeps_rests = c.spec.place.data > 1 && before.storage.exchange.feedback;
    for (size_t lane = 0; lane < c.machine.lanes.size(); ++lane) {
      const auto add = [&](Offload offload) {
        offload.lane = static_cast<Home>(lane);
        offload.memory_bytes = c.machine.lanes[lane].memory_bytes;
        all.push_back(before);
        all.back().offload = offload;
      };
      for (const bool rests : {false, true}) {
        if (rests && !keeps_rests) continue;
        for (const bool inputs : {false, true}) {
          if (inputs && stage) continue;
          if (inputs || rests) add({.inputs = inputs, .rests = rests});
          if (!c.spec.update) continue;
          add({.state = true, .inputs = inputs, .rests = rests});
          if (!before.release || !c.spec.place.alone()) continue;
          add({.state = true, .weights = true, .inputs = inputs});
        }
      }
    }
    return all;
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    const Offload& o = spec.choices.offload;
    std::string what;
    const auto add = [&](bool away, const char* name) {
      if (away) what += fmt::format("{}{}", what.empty() ? "" : ", ", name);
    };
    add(o.state, "moments, average");
    add(o.weights, "weights");
    add(o.inputs, "block inputs");
    add(o.rests, "what codes have not sent");
    return what;
  };
  t.reluctance = [](const Choices& c) {
    return c.offload.state + c.offload.weights + c.offload.inputs + c.offload.rests;
  };
  return t;
}

// The gradient of the label table and its update, of the rows that a batch touches; others see
// their updates when they are read. Where the user does not say it is only looked at if few of the
// rows are touched, and the table is much of the model.
Technique label_rows_technique() {
  Technique t{"label rows", Exactness::exact, "label-rows", "",
              "of the label table, a gradient and an update of the rows that a batch touches"};
  decide_by<bool>({{"on", true}, {"off", false}}, &Decisions::label_rows, t);
  t.offer = [](const Choices& before, const SearchCase& c) {
    const int64_t rows = c.config.classes + 1, touched = std::min(c.spec.batch, rows);
    const bool can = c.config.classes > 0 && c.spec.update &&
                     c.spec.optimizer == Optimizer::adamw && before.shard == Shard::off &&
                     !before.offload.state;
    const bool codes = c.decisions.moments.value_or(Moments::f32) == Moments::coded ||
                       (!c.decisions.moments && c.decisions.allows("adam8"));
    constexpr int64_t kFew = 8, kMuch = 16;
    const bool pays =
        touched * kFew <= rows && rows * c.config.width * kMuch >= parameter_count(c.config);
    const auto decided = c.decisions.label_rows;
    std::vector<Choices> all;
    if (!decided.value_or(false)) all.push_back(before);
    if (can && decided.value_or(pays && !codes)) {
      all.push_back(before);
      all.back().storage.label_rows = touched;
    }
    return all;
  };
  t.setting = [](const DitConfig& config, const StepSpec& spec) -> std::string {
    const int64_t touched = spec.choices.storage.label_rows;
    return touched > 0 ? fmt::format("{} of {}", touched, config.classes + 1) : "";
  };
  t.off = "off";
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"label rows", {{"label-rows", "on"}}, "a sparse gradient: for many classes"}};
  };
  return t;
}

}  // namespace ebb
