// The techniques that change numbers: how they are stored, and the optimizer.
#include <algorithm>

#include "model/optimizer.h"
#include "plan/technique_kinds.h"

namespace ebb {

namespace {

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

}  // namespace

Technique precision_technique() {
  Technique t = stored_as(
      "mixed precision", "precision", "how activations and working weights are stored",
      {{"bf16", false, false, true, false, false}, {"fp16", false, false, false, false, false}},
      kPrecisions, &Decisions::activation, &Storage::activation,
      [](const StepSpec& spec) { return spec.place.tensor == 1; });
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"bf16", {{"precision", "bf16"}}, "activations and working weights"},
            {"fp16", {{"precision", "fp16"}}, "activations; the loss is scaled"}};
  };
  return t;
}

namespace {

constexpr std::pair<const char*, const char*> kAllowedCodes[] = {{"exchange16", "bf16"},
                                                                 {"exchange8", "int8"},
                                                                 {"powersgd", "powersgd:4"},
                                                                 {"topk", "topk:0.01"}};

}  // namespace

std::vector<ExchangeCode> codes_to_allow() {
  std::vector<ExchangeCode> codes;
  for (const auto& [word, code] : kAllowedCodes) codes.push_back(*parse_exchange(code));
  return codes;
}

// What freezes moments is another training, which the planner does not choose.
std::vector<ExchangeCode> codes_to_tell() {
  std::vector<ExchangeCode> codes = codes_to_allow();
  codes.push_back(*parse_exchange("onebit"));
  return codes;
}

// Between groups of ranks. Whatever a code leaves out goes with a later gradient, or is lost.
Technique exchange_technique() {
  Technique t{"exchange",
              Exactness::lossy,
              "exchange",
              "auto|fp32|bf16[+feedback]|int8|powersgd:R|topk:F|randomk:F|onebit",
              "over ranks: how gradients are coded on their way; R: 1 to 64 columns, F: a share of "
              "the numbers, onebit: signs of AdamW's momentum",
              {{"exchange16", true, false, false},
               {"exchange8", true, false, false},
               {"powersgd", true, false, false},
               {"topk", true, false, false}}};
  t.decide = [values = t.values](Decisions& d, const std::string& word, const std::string& where) {
    d.exchange = std::nullopt;
    if (word == kAuto) return;
    d.exchange = parse_exchange(word);
    if (d.exchange) return;
    fail(Exit::usage,
         fmt::format("{}: found '{}', wanted {}{}", where, printable(word), values,
                     did_you_mean(word, split(values, '|'))),
         "powersgd:4 sends two matrices of 4 columns for each, topk:0.01 the largest hundredth");
  };
  t.decided = [](const Decisions& d) { return d.exchange ? exchange_text(*d.exchange) : kAuto; };
  t.settle = [](Decisions& d, const Choices& c) {
    if (c.storage.exchange.any()) d.exchange = c.storage.exchange;
  };
  t.offer = [](const Choices& before, const SearchCase& c) {
    std::vector<ExchangeCode> codes = {{}};
    const RankPlace& place = c.spec.place;
    const bool can = c.spec.update && place.data > 1 && place.tensor == 1 && c.spec.leaves == 0;
    for (const auto& [word, code] : kAllowedCodes) {
      if (can && c.decisions.allows(word)) codes.push_back(*parse_exchange(code));
    }
    return each_of<ExchangeCode>(
        before, codes, c.decisions.exchange,
        [](Choices& made) -> ExchangeCode& { return made.storage.exchange; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    return spec.codes_gradients() ? exchange_text(spec.choices.storage.exchange) : "";
  };
  t.reluctance = [](const Choices& c) { return c.storage.exchange.any() ? 1 : 0; };
  t.of_ranks = true;
  return t;
}

Technique gradients_technique() {
  Technique t = stored_as(
      "gradients", "grad-precision", "how the gradients of matrices are stored",
      {{"grad16", true, false, false}}, kBf16OrNot, &Decisions::gradient, &Storage::gradient,
      [](const StepSpec& spec) { return spec.update && spec.place.alone() && spec.leaves == 0; });
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"bf16 gradients", {{"grad-precision", "bf16"}}}};
  };
  return t;
}

namespace {

// The most that the shorter side of a matrix is, whose weights were not pruned one by one.
int64_t most_directions(const DitConfig& config) {
  int64_t most = 0;
  for (const ParamSpec& p : parameters(config)) {
    if (p.product && !p.sparse()) most = std::max(most, std::min(p.rows(), p.columns()));
  }
  return most;
}

// A quarter of the width, or of a model whose wide matrices are all sparse what leaves something
// away of another one; 0: there is none.
int64_t usual_rank(const DitConfig& config) {
  return std::min(std::max<int64_t>(1, config.width / 4), most_directions(config) - 1);
}

int64_t checked_rank(int64_t asked, const DitConfig& config) {
  const int64_t rank = asked == Decisions::kQuarter ? usual_rank(config) : asked;
  const int64_t most = most_directions(config);
  if (rank > 0 && rank < most) return rank;
  fail(Exit::usage,
       most > 1 ? fmt::format("--galore: found {}, wanted 1 to {}: less than the shorter side of "
                              "the model's matrices",
                              rank, most - 1)
                : "--galore: all matrices of the model are sparse: it is of whole ones",
       "a quarter of the width is usual: --galore on");
}

}  // namespace

Technique galore_technique() {
  Technique t{"galore",
              Exactness::lossy,
              "galore",
              "auto|on|RANK|off",
              "moments of so many directions of a matrix's gradient; on: a quarter of the width",
              {{"galore", true, false, true, true, false}}};
  t.decide = [](Decisions& d, const std::string& word, const std::string& where) {
    constexpr int64_t kMost = 1 << 20;
    d.galore_rank = std::nullopt;
    if (word == kAuto) return;
    if (word == "on" || word == "off") {
      d.galore_rank = word == "on" ? Decisions::kQuarter : 0;
      return;
    }
    const int64_t rank = parse_int(word, where);
    if (rank < 1 || rank > kMost) {
      fail(Exit::usage, fmt::format("{}: found {}, wanted 1 to {}", where, rank, kMost));
    }
    d.galore_rank = rank;
  };
  t.decided = [](const Decisions& d) -> std::string {
    if (!d.galore_rank) return kAuto;
    if (*d.galore_rank == Decisions::kQuarter) return "on";
    return *d.galore_rank == 0 ? "off" : fmt::format("{}", *d.galore_rank);
  };
  t.settle = [](Decisions& d, const Choices& c) { d.galore_rank = c.storage.galore_rank; };
  t.offer = [](const Choices& before, const SearchCase& c) {
    std::vector<int64_t> ranks = {0};
    const int64_t usual = usual_rank(c.config);
    const bool can = c.spec.update && c.spec.optimizer == Optimizer::adamw && usual > 0 &&
                     c.spec.place.tensor == 1;
    const bool signs = before.storage.exchange.is_signs();
    if (can && !signs && c.decisions.allows("galore")) ranks.push_back(usual);
    std::optional<int64_t> decided = c.decisions.galore_rank;
    if (decided.value_or(0) != 0) decided = checked_rank(*decided, c.config);
    return each_of<int64_t>(before, ranks, decided,
                            [](Choices& made) -> int64_t& { return made.storage.galore_rank; });
  };
  t.setting = [](const DitConfig&, const StepSpec& spec) -> std::string {
    const int64_t rank = spec.choices.storage.galore_rank;
    return rank > 0 ? fmt::format("rank {}", rank) : "";
  };
  t.reluctance = [](const Choices& c) { return c.storage.galore_rank > 0 ? 1 : 0; };
  t.off = "off";
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"galore", {{"galore", "on"}}, "moments of a quarter of the directions"}};
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
    const bool whole = before.storage.label_rows == 0;  // blocks of codes are of several rows
    const bool signs = before.storage.exchange.is_signs();
    if (c.decisions.allows("adam8") && whole && !signs) values.push_back(Moments::coded);
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

}  // namespace ebb
