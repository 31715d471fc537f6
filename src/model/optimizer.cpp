#include "model/optimizer.h"

#include <set>

#include "model/step.h"

namespace ebb {

namespace {

constexpr const char* kLow = "low.";  // of a weight that is split

// What the ops of all optimizers have in common.
template <typename AnyUpdate>
AnyUpdate stored(AnyUpdate op, const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                 uint32_t tensor) {
  op.ema = spec.ema;
  op.g = storage.gradient_of(param);
  op.split = storage.splits(param);
  op.average = storage.ema_of(param);
  op.tensor = tensor;
  return op;
}

// Moments of the tensor's own size, in 8 bits or 32: codes first, then their scales.
struct Moment {
  const char *prefix, *scale;
  Coding coding;
};
constexpr Moment kFirst = {kFirstMoment, "m_scale.", Coding::first_moment};
constexpr Moment kSecond = {kSecondMoment, "v_scale.", Coding::second_moment};

void add_moments(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage& storage,
                 const std::vector<Moment>& moments) {
  const bool coded = storage.moments_of(param) == Moments::coded;
  for (const Moment& m : moments) {
    coded ? state.push_back({m.prefix, Purpose::moment, DType::u8, param.shape, m.coding, m.scale})
          : state.push_back({m.prefix, Purpose::moment, DType::f32, param.shape});
  }
  if (!coded) return;
  const Shape blocks = {(element_count(param.shape) + kMomentBlock - 1) / kMomentBlock};
  for (const Moment& m : moments) {
    state.push_back({m.scale, Purpose::moment, DType::f32, blocks, Coding::beside});
  }
}

// ---- AdamW

void add_adam(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage& storage) {
  add_moments(state, param, storage, {kFirst, kSecond});
}

OpParams adamw(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
               uint32_t tensor) {
  AdamW op{element_count(param.shape), spec.beta1, spec.beta2, spec.eps, spec.weight_decay, true};
  op.moments = storage.moments_of(param);
  return stored(op, param, spec, storage, tensor);
}

// ---- Lion

void add_lion(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage& storage) {
  add_moments(state, param, storage, {kFirst});
}

OpParams lion(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
              uint32_t tensor) {
  Lion op{element_count(param.shape), spec.beta1, spec.beta2, spec.weight_decay, true};
  op.moments = storage.moments_of(param);
  return stored(op, param, spec, storage, tensor);
}

// ---- Adafactor

bool is_matrix(const ParamSpec& param) { return param.shape.size() > 1 && param.shape[0] > 1; }

void add_factors(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage&) {
  if (!is_matrix(param)) {
    state.push_back({kSecondMoment, Purpose::moment, DType::f32, param.shape});
    return;
  }
  const int64_t rows = param.shape[0];
  state.push_back({"v_row.", Purpose::moment, DType::f32, {rows}});
  state.push_back({"v_col.", Purpose::moment, DType::f32, {element_count(param.shape) / rows}});
}

OpParams adafactor(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                   uint32_t tensor) {
  const int64_t rows = is_matrix(param) ? param.shape[0] : 1;
  return stored(Adafactor{rows, element_count(param.shape) / rows, spec.weight_decay, true}, param,
                spec, storage, tensor);
}

const OptimizerKind& kind_of(const StepSpec& spec) {
  return optimizers()[static_cast<size_t>(spec.optimizer)];
}

}  // namespace

const std::vector<OptimizerKind>& optimizers() {
  static const std::vector<OptimizerKind> kKinds = {
      {"adamw", "", 0.9, 0.999, true, add_adam, adamw},
      {"lion", "one moment; wants a third to a tenth of AdamW's --lr", 0.9, 0.99, true, add_lion,
       lion},
      {"adafactor", "no first moment, a factored second; its --lr is a share of the weights' size",
       0, 0, false, add_factors, adafactor},
  };
  return kKinds;
}

std::vector<std::string> saved_prefixes() {
  // Of a matrix and of a vector, in every optimizer.
  std::set<std::string> prefixes;
  StepSpec spec;
  for (size_t i = 0; i < optimizers().size(); ++i) {
    spec.optimizer = static_cast<Optimizer>(i);
    for (const Shape& shape : {Shape{2, 2}, Shape{2}}) {
      for (const StateBuffer& b : state_of({"", "", shape, Init::zero}, spec, {})) {
        if (b.coding != Coding::beside && !b.prefix.empty()) prefixes.insert(b.prefix);
      }
    }
  }
  return {prefixes.begin(), prefixes.end()};
}

std::vector<StateBuffer> state_of(const ParamSpec& param, const StepSpec& spec,
                                  const Storage& storage) {
  const bool updated = spec.update && param.trained();
  const bool split = updated && storage.splits(param);
  std::vector<StateBuffer> state = {{"", Purpose::weight, storage.weight_of(param), param.shape,
                                     split ? Coding::split : Coding::plain, split ? kLow : ""}};
  if (!updated) return state;
  if (split) state.push_back({kLow, Purpose::weight, DType::i16, param.shape, Coding::beside});
  kind_of(spec).add_own(state, param, storage);
  if (spec.ema) state.push_back({kAverage, Purpose::ema, storage.ema_of(param), param.shape});
  return state;
}

OpParams update_op(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                   uint32_t tensor) {
  return kind_of(spec).update(param, spec, storage, tensor);
}

}  // namespace ebb
