#include "model/optimizer.h"

#include <cmath>
#include <set>

#include "base/error.h"
#include "model/step.h"
#include "model/structure.h"

namespace ebb {

namespace {

constexpr const char* kLow = "low.";  // of a weight that is split

// What the ops of all optimizers have in common.
template <typename AnyUpdate>
AnyUpdate stored(AnyUpdate op, const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                 uint32_t tensor) {
  op.ema = spec.ema && !shrinks(param, spec);
  op.g = storage.gradient_of(param);
  op.split = storage.splits(param);
  op.average = storage.ema_of(param);
  op.tensor = tensor;
  return op;
}

// Moments, in 8 bits or 32: codes first, then their scales.
struct Moment {
  const char *prefix, *scale;
  Coding coding;
};
constexpr Moment kFirst = {kFirstMoment, "m_scale.", Coding::first_moment};
constexpr Moment kSecond = {kSecondMoment, "v_scale.", Coding::second_moment};

void add_moments(std::vector<StateBuffer>& state, const Shape& shape, bool coded,
                 const std::vector<Moment>& moments) {
  for (const Moment& m : moments) {
    coded ? state.push_back({m.prefix, Purpose::moment, DType::u8, shape, m.coding, m.scale})
          : state.push_back({m.prefix, Purpose::moment, DType::f32, shape});
  }
  if (!coded) return;
  const Shape blocks = {(element_count(shape) + kMomentBlock - 1) / kMomentBlock};
  for (const Moment& m : moments) {
    state.push_back({m.scale, Purpose::moment, DType::f32, blocks, Coding::beside});
  }
}

// ---- AdamW

GaloreAdamW projected(const ParamSpec& param, const Storage& storage) {
  GaloreAdamW op{param.rows(), param.columns(), storage.galore_rank, {}};
  op.adam.n = op.long_side() * op.rank;
  return op;
}

void add_adam(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage& storage) {
  Shape shape = param.stored();
  if (storage.projects(param)) {
    const GaloreAdamW op = projected(param, storage);
    state.push_back({kProjector, Purpose::moment, DType::f32, {op.rank, op.short_side()}});
    shape = {op.long_side(), op.rank};
  }
  add_moments(state, shape, storage.moments_of(param) == Moments::coded, {kFirst, kSecond});
  if (!storage.in_rows(param)) return;
  state.push_back({"done.", Purpose::moment, DType::i32, {param.rows()}, Coding::beside});
  state.push_back({"history.", Purpose::moment, DType::f64, {kHistorySize}, Coding::beside});
}

OpParams adamw(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
               uint32_t tensor) {
  AdamW op{param.count(), spec.beta1, spec.beta2, spec.eps, spec.weight_decay, true};
  op.moments = storage.moments_of(param);
  op = stored(op, param, spec, storage, tensor);
  op.frozen = spec.codes_gradients() && storage.exchange.freezes() && storage.sends_coded(param);
  if (storage.projects(param)) {
    GaloreAdamW small = projected(param, storage);
    op.n = small.adam.n;
    small.adam = op;
    small.refresh = spec.galore_refresh;
    small.scale = spec.galore_scale;
    return small;
  }
  if (!storage.in_rows(param)) return op;
  require(op.moments == Moments::f32, "optimizer: rows of a table with moments in 8 bits");
  op.n = param.columns();
  return LabelRowsUpdate{param.rows(), op.n, storage.label_rows, op};
}

// ---- Lion

void add_lion(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage& storage) {
  add_moments(state, param.stored(), storage.moments_of(param) == Moments::coded, {kFirst});
}

OpParams lion(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
              uint32_t tensor) {
  Lion op{param.count(), spec.beta1, spec.beta2, spec.weight_decay, true};
  op.moments = storage.moments_of(param);
  return stored(op, param, spec, storage, tensor);
}

// ---- Adafactor

// Rows and columns with few elements have no means worth keeping: a sparse matrix counts as a
// vector.
bool is_matrix(const ParamSpec& param) {
  return param.shape.size() > 1 && param.shape[0] > 1 && !param.sparse();
}

void add_factors(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage&) {
  if (!is_matrix(param)) {
    state.push_back({kSecondMoment, Purpose::moment, DType::f32, param.stored()});
    return;
  }
  const int64_t rows = param.shape[0];
  state.push_back({"v_row.", Purpose::moment, DType::f32, {rows}});
  state.push_back({"v_col.", Purpose::moment, DType::f32, {element_count(param.shape) / rows}});
}

OpParams adafactor(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                   uint32_t tensor) {
  const int64_t rows = is_matrix(param) ? param.shape[0] : 1;
  return stored(Adafactor{rows, param.count() / rows, spec.weight_decay, true}, param, spec,
                storage, tensor);
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
  // Of a matrix, with a projector and without, and of a vector, in every optimizer.
  std::set<std::string> prefixes;
  StepSpec spec;
  for (size_t i = 0; i < optimizers().size(); ++i) {
    spec.optimizer = static_cast<Optimizer>(i);
    for (const Shape& shape : {Shape{2, 2}, Shape{2}}) {
      for (const int64_t rank : {0, 1}) {
        const ParamSpec param{"", "", shape, Init::zero, shape.size() > 1};
        for (const StateBuffer& b : state_of(param, spec, {.galore_rank = rank})) {
          if (b.coding != Coding::beside && !b.prefix.empty()) prefixes.insert(b.prefix);
        }
      }
    }
  }
  return {prefixes.begin(), prefixes.end()};
}

std::vector<StateBuffer> state_of(const ParamSpec& param, const StepSpec& spec,
                                  const Storage& storage) {
  const bool updated = spec.update && param.trained();
  const bool split = updated && storage.splits(param);
  std::vector<StateBuffer> state = {{"", Purpose::weight, storage.weight_of(param), param.stored(),
                                     split ? Coding::split : Coding::plain, split ? kLow : ""}};
  if (param.sparse()) {
    state.push_back({kMask, Purpose::weight, DType::u8, mask_shape(param), Coding::mask});
  }
  if (!updated) return state;
  if (split) state.push_back({kLow, Purpose::weight, DType::i16, param.stored(), Coding::beside});
  kind_of(spec).add_own(state, param, storage);
  if (spec.ema) state.push_back({kAverage, Purpose::ema, storage.ema_of(param), param.stored()});
  return state;
}

std::vector<StateBuffer> exchange_state(const ParamSpec& param, const Storage& storage, int group) {
  const ExchangeCode& code = storage.exchange;
  if (!code.feedback || !storage.sends_coded(param)) return {};
  const DType type = code.kind == ExchangeCode::Kind::bf16 ? DType::bf16 : DType::f32;
  std::vector<StateBuffer> state = {{rest_prefix(group), Purpose::exchange, type, param.stored()}};
  if (code.kind == ExchangeCode::Kind::low_rank) {
    state.push_back({kWarm, Purpose::exchange, DType::f32, {param.columns(), code.columns}});
  }
  if (code.is_signs()) {
    state.push_back({kSumRest, Purpose::exchange, DType::f32, param.stored()});
  }
  return state;
}

bool in_group(const ParamSpec& param, const StepSpec& spec) {
  return spec.group_lasso > 0 && in_structure(param);
}

bool shrinks(const ParamSpec& param, const StepSpec& spec) {
  return spec.update && ((spec.l1 > 0 && param.prunable()) || in_group(param, spec));
}

OpParams norm_op(const ParamSpec& param, const Storage& storage, int64_t slot) {
  if (!storage.in_rows(param)) return SquaredNorm{param.count(), slot, storage.gradient_of(param)};
  return LabelRowsNorm{param.rows(), param.columns(), storage.label_rows, slot};
}

OpParams squares_op(const ParamSpec& param, const DitConfig& config, const StepSpec& spec,
                    const Storage& storage, bool begins) {
  const Belonging place = belonging(param, config);
  const int64_t count = structure_count(config.blocks[*place.block], place.member->kind);
  StructureSquares op{param.rows(),        param.columns(),       count,
                      place.member->width, place.member->columns, begins};
  if (param.prunable()) op.l1 = spec.l1;
  op.split = storage.splits(param);
  return op;
}

OpParams shrink_op(const ParamSpec& param, const DitConfig& config, const StepSpec& spec,
                   const Storage& storage, uint32_t tensor) {
  const int64_t rows = param.sparse() ? 1 : param.rows();
  Shrink op{rows, param.count() / rows, param.prunable() ? spec.l1 : 0, spec.ema};
  if (in_group(param, spec)) {
    const Belonging place = belonging(param, config);
    const Structure kind = place.member->kind;
    op.lasso = spec.group_lasso * std::sqrt(static_cast<double>(structure_params(config, kind)));
    op.structures = structure_count(config.blocks[*place.block], kind);
    op.width = place.member->width;
    op.by_columns = place.member->columns;
  }
  op.split = storage.splits(param);
  op.average = storage.ema_of(param);
  op.tensor = tensor;
  return op;
}

OpParams update_op(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                   uint32_t tensor) {
  return kind_of(spec).update(param, spec, storage, tensor);
}

}  // namespace ebb
