#include "model/optimizer.h"

#include "model/step.h"

namespace ebb {

namespace {

constexpr const char* kLow = "low.";  // of a weight that is split
constexpr const char* kFirstScale = "m_scale.";
constexpr const char* kSecondScale = "v_scale.";

AdamW adamw(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
            uint32_t tensor) {
  AdamW op{element_count(param.shape), spec.beta1, spec.beta2, spec.eps,
           spec.weight_decay,          spec.ema};
  op.g = storage.gradient_of(param);
  op.split = storage.splits(param);
  op.moments = storage.moments_of(param);
  op.average = storage.ema_of(param);
  op.tensor = tensor;
  return op;
}

void add_adam_moments(std::vector<StateBuffer>& state, const ParamSpec& param,
                      const Storage& storage) {
  constexpr auto kPurpose = Purpose::moment;
  if (storage.moments_of(param) == Moments::f32) {
    state.push_back({kFirstMoment, kPurpose, DType::f32, param.shape});
    state.push_back({kSecondMoment, kPurpose, DType::f32, param.shape});
    return;
  }
  const Shape blocks = {(element_count(param.shape) + kMomentBlock - 1) / kMomentBlock};
  state.push_back(
      {kFirstMoment, kPurpose, DType::u8, param.shape, Coding::first_moment, kFirstScale});
  state.push_back(
      {kSecondMoment, kPurpose, DType::u8, param.shape, Coding::second_moment, kSecondScale});
  state.push_back({kFirstScale, kPurpose, DType::f32, blocks, Coding::beside});
  state.push_back({kSecondScale, kPurpose, DType::f32, blocks, Coding::beside});
}

}  // namespace

std::vector<StateBuffer> state_of(const ParamSpec& param, const StepSpec& spec,
                                  const Storage& storage) {
  const bool updated = spec.update && param.trained();
  const bool split = updated && storage.splits(param);
  std::vector<StateBuffer> state = {{"", Purpose::weight, storage.weight_of(param), param.shape,
                                     split ? Coding::split : Coding::plain, split ? kLow : ""}};
  if (!updated) return state;
  if (split) state.push_back({kLow, Purpose::weight, DType::i16, param.shape, Coding::beside});
  add_adam_moments(state, param, storage);
  if (spec.ema) state.push_back({kAverage, Purpose::ema, storage.ema_of(param), param.shape});
  return state;
}

OpParams update_op(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                   uint32_t tensor) {
  return adamw(param, spec, storage, tensor);
}

}  // namespace ebb
