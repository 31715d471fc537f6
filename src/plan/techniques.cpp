#include "plan/techniques.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "model/optimizer.h"

namespace ebb {

namespace {

constexpr const char* kAuto = "auto";

bool accumulates(const StepSpec& spec, int64_t micro_batch) {
  return micro_batch_count(spec.batch, micro_batch) > 1;
}

// Words that each stand for a value; kAuto for none.
template <typename T>
using Words = std::vector<std::pair<std::string, T>>;

template <typename T>
void decide_by(const Words<T>& words, std::optional<T> Decisions::*member, Technique& t) {
  t.values = kAuto;
  for (const auto& [name, value] : words) t.values += "|" + name;
  t.decide = [=, values = t.values](Decisions& d, const std::string& word,
                                    const std::string& where) {
    d.*member = std::nullopt;
    if (word == kAuto) return;
    for (const auto& [name, value] : words) {
      if (word == name) d.*member = value;
    }
    if (d.*member) return;
    fail(Exit::usage, fmt::format("{}: found '{}', wanted {}{}", where, printable(word), values,
                                  did_you_mean(word, split(values, '|'))));
  };
  t.decided = [=](const Decisions& d) -> std::string {
    for (const auto& [name, value] : words) {
      if (d.*member == value) return name;
    }
    return kAuto;
  };
}

// One choice for each of `values`, or the one decided on.
template <typename T>
std::vector<Choices> each_of(const Choices& before, const std::vector<T>& values,
                             const std::optional<T>& decided, T& (*of)(Choices&)) {
  std::vector<Choices> all;
  for (const T& value : decided ? std::vector<T>{*decided} : values) {
    Choices made = before;
    of(made) = value;
    all.push_back(std::move(made));
  }
  return all;
}

// ---- exact -------------------------------------------------------------------------------------

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
    return each_of<int64_t>(before, micro_batch_sizes(c.spec.batch), c.decisions.micro_batch,
                            [](Choices& made) -> int64_t& { return made.micro_batch; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    if (!accumulates(spec, spec.choices.micro_batch)) return "";
    const std::vector<Part> parts = micro_batches(spec.batch, spec.choices.micro_batch);
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
  // With one micro-batch both orders are the same.
  t.offer = [](const Choices& before, const SearchCase& c) {
    const bool several = accumulates(c.spec, before.micro_batch);
    return each_of<bool>(before, several ? std::vector{false, true} : std::vector{false},
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
      // Without release the order of layers only takes memory.
      if (!release && before.layer_major && !c.decisions.layer_major) continue;
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

constexpr const char* kCheap = "attn-in+mlp-in+gelu+x1";  // no matrix product makes any of these

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

// A parameter's state goes away after its update: with release, while the next layer runs.
Technique offload_technique() {
  Technique t{"offload", Exactness::exact, "offload"};
  t.offer = [](const Choices& before, const SearchCase& c) {
    std::vector<Choices> all = {before};
    for (size_t lane = 0; lane < c.machine.lanes.size(); ++lane) {
      const auto add = [&](bool state, bool weights, bool inputs) {
        all.push_back(before);
        all.back().offload = {state, weights, inputs, static_cast<Home>(lane),
                              c.machine.lanes[lane].memory_bytes};
      };
      add(false, false, true);
      if (!before.release) continue;
      for (const bool inputs : {false, true}) {
        for (const bool weights : {false, true}) add(true, weights, inputs);
      }
    }
    return all;
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    const Offload& o = spec.choices.offload;
    if (!o.any()) return "";
    std::string what = o.state ? "moments, average" : "";
    if (o.weights) what += ", weights";
    if (o.inputs) what += what.empty() ? "block inputs" : ", block inputs";
    return what;
  };
  t.reluctance = [](const Choices& c) {
    return c.offload.state + c.offload.weights + c.offload.inputs;
  };
  return t;
}

// ---- lossy: how numbers are stored
// ---------------------------------------------------------------

const Words<DType> kPrecisions = {
    {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};
const Words<DType> kBf16OrNot = {{"fp32", DType::f32}, {"bf16", DType::bf16}};

std::string word_of(DType type) {
  for (const auto& [word, each] : kPrecisions) {
    if (each == type) return word;
  }
  throw Bug("no word for this type");
}

// One member of Storage that is a type; `useful` says whether there is any use for it.
Technique stored_as(const char* name, const char* flag, const char* help,
                    std::vector<AllowWord> words, const Words<DType>& values,
                    std::optional<DType> Decisions::*decision, DType Storage::*member,
                    bool (*useful)(const StepSpec&)) {
  Technique t{name, Exactness::lossy, flag, "", help, std::move(words)};
  decide_by<DType>(values, decision, t);
  t.settle = [=](Decisions& d, const Choices& c) { d.*decision = c.storage.*member; };
  t.offer = [=, words = t.words](const Choices& before, const SearchCase& c) {
    std::vector<DType> types = {DType::f32};
    for (size_t i = 0; i < words.size(); ++i) {
      if (c.decisions.allows(words[i].word)) types.push_back(values[i + 1].second);
    }
    if (c.decisions.*decision) types = {*(c.decisions.*decision)};
    if (!useful(c.spec)) types = {DType::f32};
    std::vector<Choices> all;
    for (const DType type : types) {
      all.push_back(before);
      all.back().storage.*member = type;
    }
    return all;
  };
  t.setting = [=](const DitConfig&, const StepSpec& spec) -> std::string {
    const DType type = spec.choices.storage.*member;
    return type == DType::f32 ? "" : word_of(type);
  };
  t.reluctance = [=](const Choices& c) { return c.storage.*member != DType::f32 ? 1 : 0; };
  t.off = "fp32";
  return t;
}

Technique precision_technique() {
  Technique t =
      stored_as("mixed precision", "precision", "how activations and working weights are stored",
                {{"bf16"}, {"fp16", false, false, false}}, kPrecisions, &Decisions::activation,
                &Storage::activation, [](const StepSpec&) { return true; });
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"bf16", {{"precision", "bf16"}}, "activations and working weights"},
            {"fp16", {{"precision", "fp16"}}, "activations; the loss is scaled"}};
  };
  return t;
}

Technique gradients_technique() {
  Technique t = stored_as("gradients", "grad-precision", "how the gradients of matrices are stored",
                          {{"grad16", true, false, false}}, kBf16OrNot, &Decisions::gradient,
                          &Storage::gradient, [](const StepSpec& spec) { return spec.update; });
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"bf16 gradients", {{"grad-precision", "bf16"}}}};
  };
  return t;
}

Technique moments_technique() {
  Technique t{"moments",        Exactness::lossy, "moments", "", "how Adam's moments are stored",
              {{"adam8", true}}};
  decide_by<Moments>({{"fp32", Moments::f32}, {"8bit", Moments::coded}}, &Decisions::moments, t);
  t.settle = [](Decisions& d, const Choices& c) { d.moments = c.storage.moments; };
  t.of_state = true;
  t.offer = [](const Choices& before, const SearchCase& c) {
    std::vector<Moments> values = {Moments::f32};
    if (c.decisions.allows("adam8")) values.push_back(Moments::coded);
    const bool coded = optimizers()[static_cast<size_t>(c.spec.optimizer)].codes_moments;
    if (!c.spec.update || !coded) return std::vector<Choices>{before};
    return each_of<Moments>(before, values, c.decisions.moments,
                            [](Choices& made) -> Moments& { return made.storage.moments; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) {
    return spec.choices.storage.moments == Moments::coded ? "8-bit" : "";
  };
  t.reluctance = [](const Choices& c) { return c.storage.moments != Moments::f32 ? 1 : 0; };
  t.off = "fp32";
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"8-bit moments", {{"moments", "8bit"}}}};
  };
  return t;
}

Technique average_technique() {
  Technique t = stored_as("average", "ema-precision", "how the averaged matrices are stored",
                          {{"ema16", true, true}}, kBf16OrNot, &Decisions::ema, &Storage::ema,
                          [](const StepSpec& spec) { return spec.update && spec.ema; });
  t.of_state = true;
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"bf16 average", {{"ema-precision", "bf16"}}},
            {"bf16 + 8-bit moments + bf16 average",
             {{"precision", "bf16"}, {"moments", "8bit"}, {"ema-precision", "bf16"}}}};
  };
  return t;
}

// Never the planner's to choose: another optimizer is another training.
Technique optimizer_technique() {
  Technique t{"optimizer", Exactness::lossy, "optimizer", "",
              "how gradients become steps; adamw keeps two moments of each parameter"};
  Words<Optimizer> words;
  for (size_t i = 0; i < optimizers().size(); ++i) {
    words.emplace_back(optimizers()[i].name, static_cast<Optimizer>(i));
  }
  decide_by<Optimizer>(words, &Decisions::optimizer, t);
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    if (!spec.update || spec.optimizer == Optimizer::adamw) return "";
    return optimizers()[static_cast<size_t>(spec.optimizer)].name;
  };
  t.off = "adamw";
  t.rows = [](int64_t) {
    std::vector<ComparedRow> rows;
    for (const OptimizerKind& kind : optimizers()) {
      if (kind.name != std::string("adamw")) {
        rows.push_back({kind.name, {{"optimizer", kind.name}}, kind.note});
      }
    }
    return rows;
  };
  return t;
}

std::vector<Technique> make_techniques() {
  return {recompute_technique(), micro_batches_technique(), order_technique(),
          release_technique(),   offload_technique(),       precision_technique(),
          gradients_technique(), moments_technique(),       average_technique(),
          optimizer_technique()};
}

}  // namespace

const char* exactness_name(Exactness kind) {
  constexpr const char* kNames[] = {"exact", "rounding", "lossy"};
  return kNames[static_cast<int>(kind)];
}

const std::vector<Technique>& techniques() {
  static const std::vector<Technique> kTechniques = make_techniques();
  return kTechniques;
}

std::vector<AllowWord> allow_words() {
  std::vector<AllowWord> all;
  for (const Technique& t : techniques()) all.insert(all.end(), t.words.begin(), t.words.end());
  return all;
}

void check_decisions(const Decisions& d, const StepSpec& spec) {
  const bool several = d.micro_batch && accumulates(spec, *d.micro_batch);
  if (d.micro_batch && *d.micro_batch > spec.batch) {
    fail(Exit::usage,
         fmt::format("--micro-batch: found {}, more than --batch {}", *d.micro_batch, spec.batch),
         "a micro-batch is a part of the batch");
  }
  if (several && d.release.value_or(false) && !d.layer_major.value_or(true)) {
    fail(Exit::usage,
         fmt::format("--release on contradicts --order batch with --micro-batch {} of --batch {}: "
                     "a gradient is complete only after the last micro-batch",
                     *d.micro_batch, spec.batch),
         "leave --order to the planner, or --micro-batch at the whole batch");
  }
  const OptimizerKind& optimizer = optimizers()[static_cast<size_t>(spec.optimizer)];
  if (d.moments.value_or(Moments::f32) == Moments::coded && !optimizer.codes_moments) {
    fail(Exit::usage,
         fmt::format("--moments 8bit contradicts --optimizer {}: it keeps no moments of the "
                     "parameters' size",
                     optimizer.name),
         "leave --moments out");
  }
  if (d.optimizer && !spec.update) {
    fail(Exit::usage, "--optimizer contradicts the gradients that are asked for",
         "leave --optimizer out");
  }
  if (d.release.value_or(false) && !spec.update) {
    fail(Exit::usage, "--release on contradicts the gradients that are asked for",
         "leave --release out");
  }
}

int used_reluctantly(const Choices& choices) {
  int sum = 0;
  for (const Technique& t : techniques()) sum += t.reluctance(choices);
  return sum;
}

std::vector<TechniqueUse> techniques_in_use(const DitConfig& config, const StepSpec& spec) {
  std::vector<TechniqueUse> used;
  for (const Technique& t : techniques()) {
    std::string setting = t.setting(config, spec);
    if (!setting.empty()) used.push_back({t.name, std::move(setting), exactness_name(t.kind)});
  }
  return used;
}

}  // namespace ebb
