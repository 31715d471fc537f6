// The techniques that change numbers: how they are stored, and the optimizer.
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
  Technique t =
      stored_as("mixed precision", "precision", "how activations and working weights are stored",
                {{"bf16", false, false, true, false}, {"fp16", false, false, false, false}},
                kPrecisions, &Decisions::activation, &Storage::activation,
                [](const StepSpec& spec) { return spec.place.tensor == 1; });
  t.rows = [](int64_t) -> std::vector<ComparedRow> {
    return {{"bf16", {{"precision", "bf16"}}, "activations and working weights"},
            {"fp16", {{"precision", "fp16"}}, "activations; the loss is scaled"}};
  };
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

Technique moments_technique() {
  Technique t{"moments",        Exactness::lossy, "moments", "", "how Adam's moments are stored",
              {{"adam8", true}}};
  decide_by<Moments>({{"fp32", Moments::f32}, {"8bit", Moments::coded}}, &Decisions::moments, t);
  t.settle = [](Decisions& d, const Choices& c) { d.moments = c.storage.moments; };
  t.of_state = true;
  t.offer = [](const Choices& before, const SearchCase& c) {
    std::vector<Moments> values = {Moments::f32};
    const bool whole = before.storage.label_rows == 0;  // blocks of codes are of several rows
    if (c.decisions.allows("adam8") && whole) values.push_back(Moments::coded);
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
