#include "program/signature.h"

#include <utility>

#include "program/signature_args.h"
#include "program/signature_exchange.h"
#include "program/signature_label.h"

namespace ebb {
namespace {

// ---- samples ---------------------------------------------------------------------------------

Signature of(const TakeSamples& op) {
  Signature s{{}, {typed(op.type, "stored", {op.B, op.n})}, {}};
  if (op.labelled) s.writes.push_back(i32("y", {op.B}));
  return s;
}

Signature of(const ReadSamples& op) {
  const Shape shape = {op.B, op.C, op.S, op.S};
  return {{typed(op.type, "stored", shape)}, {f32("x", shape)}, {}};
}

// ---- noise, time, labels -------------------------------------------------------------------

Signature of(const FillNormal& op) { return {{}, {f32("noise", {op.B, op.n})}, {}}; }

Signature of(const DrawTimes& op) { return {{}, {f32("t", {op.B})}, {}}; }

Signature of(const DropLabels& op) { return {{i32("y", {op.B})}, {i32("dropped", {op.B})}, {}}; }

Signature of(const Diffuse& op) {
  return {{f32("x", {op.B, op.n}), f32("noise", {op.B, op.n}), f32("t", {op.B})},
          {f32_over({0, 1}, "xt", {op.B, op.n})},
          {}};
}

Signature of(const FillTime& op) { return {{}, {f32("t", {op.B})}, {}}; }

// ---- embedders and the image <-> token rearrangements ----------------------------------------

template <typename O>
Shape image_shape(const O& op) {
  return {op.B, op.C, op.S, op.S};
}

template <typename O>
Shape token_shape(const O& op) {
  return {op.B * (op.S / op.p) * (op.S / op.p), op.C * op.p * op.p};
}

Signature of(const Patchify& op) {
  return {{f32("image", image_shape(op))}, {f32("patches", token_shape(op))}, {}};
}

Signature of(const Unpatchify& op) {
  return {{f32("tokens", token_shape(op))}, {f32("image", image_shape(op))}, {}};
}

Signature of(const UnpatchifyBackward& op) {
  return {{f32("dimage", image_shape(op))}, {f32("dtokens", token_shape(op))}, {}};
}

Signature of(const AddPositions& op) {
  return {{f32("pos", {op.T, op.D})}, {}, {typed(op.type, "tokens", {op.B * op.T, op.D})}};
}

Signature of(const TimeEmbed& op) {
  return {{f32("t", {op.B})}, {f32("features", {op.B, kTimeFeatures})}, {}};
}

// ---- linear -----------------------------------------------------------------------------------

template <typename AnyLinear>
Shape weight_shape(const AnyLinear& op) {
  return op.left > 0 ? Shape{op.left} : Shape{op.N, op.K};
}
template <typename AnyLinear>
void add_mask(Signature& s, const AnyLinear& op) {
  if (op.left > 0) s.reads.push_back(typed(DType::u8, "mask", {op.N, mask_row_bytes(op.K)}));
}

Signature of(const Linear& op) {
  Signature s{
      {typed(op.x, "x", {op.R, op.K}), typed(op.w, "w", weight_shape(op)), f32("b", {op.N})},
      {typed(op.y, "y", {op.R, op.N})},
      {}};
  if (op.end == LinearEnd::gelu_aside) s.writes.push_back(typed(op.y, "g", {op.R, op.N}));
  add_mask(s, op);
  return s;
}

Signature of(const LinearBackwardInput& op) {
  Signature s{{typed(op.dy, "dy", {op.R, op.N}), typed(op.w, "w", weight_shape(op))},
              {typed(op.dx, "dx", {op.R, op.K})},
              {}};
  if (op.gelu) s.reads.push_back(typed(op.dx, "u", {op.R, op.K}));
  add_mask(s, op);
  return s;
}

Signature of(const LinearBackwardParams& op) {
  Signature s{{typed(op.dy, "dy", {op.R, op.N}), typed(op.x, "x", {op.R, op.K})}, {}, {}};
  std::vector<Arg>& into = op.begins ? s.writes : s.updates;
  into.push_back(typed(op.dw, "dw", weight_shape(op)));
  into.push_back(f32("db", {op.N}));
  add_mask(s, op);
  return s;
}

// ---- elementwise ------------------------------------------------------------------------------

Signature of(const Silu& op) { return {{f32("x", {op.n})}, {f32_over({0}, "y", {op.n})}, {}}; }

Signature of(const SiluBackward& op) {
  return {{f32("dy", {op.n}), f32("x", {op.n})}, {f32_over({0, 1}, "dx", {op.n})}, {}};
}

Signature of(const Gelu& op) {
  return {{typed(op.type, "x", {op.n})}, {over({0}, typed(op.type, "y", {op.n}))}, {}};
}

Signature of(const Add& op) {
  return {{f32("a", {op.n}), f32("b", {op.n})}, {f32_over({0, 1}, "y", {op.n})}, {}};
}

Signature of(const AddTo& op) { return {{f32("x", {op.n})}, {}, {f32("y", {op.n})}}; }

Signature of(const Repeat& op) { return {{f32("x", {op.n})}, {f32("y", {2 * op.n})}, {}}; }

Signature of(const CopyColumns& op) {
  return {{typed(op.type, "x", {op.R, op.K})}, {typed(op.type, "y", {op.R, op.N})}, {}};
}

Signature of(const Zero& op) { return {{}, {typed(op.type, "x", {op.n})}, {}}; }

// ---- normalisation and modulation --------------------------------------------------------------

Signature of(const AdaLN& op) {
  const Shape rows = {op.B * op.T, op.D};
  return {{typed(op.type, "x", rows), f32("mod", {op.B, op.chunks * op.D})},
          {over({0}, typed(op.type, "y", rows)), f32("stats", {op.B * op.T, 2})},
          {}};
}

Signature of(const AdaLNBackward& op) {
  const Shape rows = {op.B * op.T, op.D}, mod = {op.B, op.chunks * op.D};
  Signature s{{typed(op.type, "dy", rows), typed(op.type, "x", rows),
               f32("stats", {op.B * op.T, 2}), f32("mod", mod)},
              {f32("dmod", mod)},
              {}};
  if (op.residual) {
    s.updates.push_back(typed(op.type, "dx", rows));
  } else {
    s.writes.push_back(over({0, 1}, typed(op.type, "dx", rows)));
  }
  return s;
}

Signature of(const AddGated& op) {
  const Shape rows = {op.B * op.T, op.D};
  return {
      {typed(op.type, "x", rows), typed(op.type, "y", rows), f32("mod", {op.B, op.chunks * op.D})},
      {over({0, 1}, typed(op.type, "out", rows))},
      {}};
}

Signature of(const AddGatedBackward& op) {
  const Shape rows = {op.B * op.T, op.D}, mod = {op.B, op.chunks * op.D};
  return {{typed(op.type, "dout", rows), typed(op.type, "y", rows), f32("mod", mod)},
          {over({0, 1}, typed(op.type, "dy", rows)), f32("dmod", mod)},
          {}};
}

Signature of(const QkNorm& op) {
  const Shape qkv = {op.B * op.T, 3 * op.H * op.d};
  Signature s{{typed(op.type, "qkv", qkv), f32("qw", {op.d}), f32("kw", {op.d})},
              {over({0}, typed(op.type, "normed", qkv)), f32("stats", {op.B * op.T, 2 * op.H, 2})},
              {}};
  if (op.kind == QkNormKind::layer) {
    s.reads.push_back(f32("qb", {op.d}));
    s.reads.push_back(f32("kb", {op.d}));
  }
  return s;
}

Signature of(const QkNormBackward& op) {
  const Shape qkv = {op.B * op.T, 3 * op.H * op.d};
  Signature s{{typed(op.type, "dnormed", qkv), typed(op.type, "qkv", qkv),
               f32("stats", {op.B * op.T, 2 * op.H, 2}), f32("qw", {op.d}), f32("kw", {op.d})},
              {over({0, 1}, typed(op.type, "dqkv", qkv))},
              {f32("dqw", {op.d}), f32("dkw", {op.d})}};
  if (op.kind == QkNormKind::layer) {
    s.updates.push_back(f32("dqb", {op.d}));
    s.updates.push_back(f32("dkb", {op.d}));
  }
  return s;
}

// ---- attention --------------------------------------------------------------------------------

Signature of(const Attention& op) {
  return {{typed(op.type, "qkv", {op.B * op.T, 3 * op.H * op.d})},
          {typed(op.type, "o", {op.B * op.T, op.H * op.d}), f32("lse", {op.B, op.H, op.T})},
          {}};
}

Signature of(const AttentionBackward& op) {
  const Shape qkv = {op.B * op.T, 3 * op.H * op.d}, heads = {op.B * op.T, op.H * op.d};
  return {{typed(op.type, "do", heads), typed(op.type, "qkv", qkv), typed(op.type, "o", heads),
           f32("lse", {op.B, op.H, op.T})},
          {typed(op.type, "dqkv", qkv)},
          {}};
}

// ---- losses -----------------------------------------------------------------------------------

// What the network gives: the prediction, then with learn_sigma as many channels again.
template <typename O>
Shape out_shape(const O& op) {
  return {op.B, op.learn_sigma ? 2 * op.C : op.C, op.n};
}

Signature of(const DdpmLoss& op) {
  const Shape image = {op.B, op.C, op.n};
  return {{f32("out", out_shape(op)), f32("x", image), f32("noise", image), f32("xt", image),
           f32("t", {op.B})},
          {f32("losses", {op.B}), f32("dout", out_shape(op))},
          {}};
}

Signature of(const FlowLoss& op) {
  const Shape image = {op.B, op.C, op.n};
  return {{f32("out", out_shape(op)), f32("x", image), f32("noise", image)},
          {f32("losses", {op.B}), f32("dout", out_shape(op))},
          {}};
}

Signature of(const SumLosses& op) { return {{f32("losses", {op.B})}, {}, {f32("total", {1})}}; }

// ---- update -----------------------------------------------------------------------------------

Signature of(const SquaredNorm& op) {
  return {{typed(op.g, "g", {op.n})}, {or_more(f64("norms", {op.slot + 1}))}, {}};
}

Signature of(const ClipScale& op) {
  Arg norms = f64("norms", {op.first + op.count});
  norms.or_more = true;
  return {{norms}, {f32("clip", {2})}, {}};
}

// What updates of all optimizers have, around what is the optimizer's own.
template <typename AnyUpdate>
Signature of_update(const AnyUpdate& op, int64_t n, std::vector<Arg> own) {
  Signature s{{typed(op.g, "g", {n}), f32("clip", {2})}, {}, {}};
  s.updates.push_back(typed(op.split ? DType::bf16 : DType::f32, "w", {n}));
  if (op.split) s.updates.push_back(typed(DType::i16, "low", {n}));
  for (Arg& arg : own) s.updates.push_back(std::move(arg));
  if (op.ema) s.updates.push_back(typed(op.average, "ema", {n}));
  return s;
}

Signature of(const AdamW& op) {
  const bool coded = op.moments == Moments::coded;
  std::vector<Arg> own;
  for (const char* name : {"m", "v"}) {
    own.push_back(typed(coded ? DType::u8 : DType::f32, name, {op.n}));
  }
  if (coded) {
    for (const char* name : {"m_scale", "v_scale"}) own.push_back(f32(name, {op.blocks()}));
  }
  return of_update(op, op.n, std::move(own));
}

Signature of(const Lion& op) {
  const bool coded = op.moments == Moments::coded;
  std::vector<Arg> own = {typed(coded ? DType::u8 : DType::f32, "m", {op.n})};
  if (coded) own.push_back(f32("m_scale", {op.blocks()}));
  return of_update(op, op.n, std::move(own));
}

Signature of(const Adafactor& op) {
  if (!op.factored()) return of_update(op, op.n(), {f32("v", {op.n()})});
  return of_update(op, op.n(), {f32("v_row", {op.rows}), f32("v_col", {op.columns})});
}

Signature of(const GaloreAdamW& op) {
  const bool coded = op.adam.moments == Moments::coded;
  std::vector<Arg> own = {f32("q", {op.rank, op.short_side()})};
  for (const char* name : {"m", "v"}) {
    own.push_back(typed(coded ? DType::u8 : DType::f32, name, {op.long_side(), op.rank}));
  }
  if (coded) {
    for (const char* name : {"m_scale", "v_scale"}) own.push_back(f32(name, {op.adam.blocks()}));
  }
  return of_update(op.adam, op.n(), std::move(own));
}

// A weight however it is stored, and its average.
template <typename AnyOp>
std::vector<Arg> weight_args(const AnyOp& op) {
  const Shape shape = {op.rows, op.columns};
  std::vector<Arg> args = {typed(op.split ? DType::bf16 : DType::f32, "w", shape)};
  if (op.split) args.push_back(typed(DType::i16, "low", shape));
  return args;
}

Signature of(const StructureSquares& op) {
  const Arg squares = f64("squares", {op.structures});
  if (op.begins) return {weight_args(op), {squares}, {}};
  return {weight_args(op), {}, {squares}};
}

Signature of(const Shrink& op) {
  Signature s{{f32("clip", {2})}, {}, weight_args(op)};
  if (op.lasso > 0) s.reads.push_back(f64("squares", {op.structures}));
  if (op.ema) s.updates.push_back(typed(op.average, "ema", {op.rows, op.columns}));
  return s;
}

// ---- sampling ---------------------------------------------------------------------------------

Signature of(const LabelsAndNull& op) {
  return {{i32("y", {op.B})}, {i32("labels", {2 * op.B})}, {}};
}

Signature of(const Guide& op) {
  return {
      {f32("out", {2 * op.B, op.channels, op.n})}, {f32("guided", {op.B, op.channels, op.n})}, {}};
}

Signature of(const DiffusionStep& op) {
  const Shape image = {op.B, op.C, op.n};
  Signature s{{f32("x", image), f32("out", out_shape(op))}, {f32("next", image)}, {}};
  if (op.noisy) s.reads.push_back(f32("z", image));
  return s;
}

Signature of(const FlowStep& op) {
  const Shape image = {op.B, op.C, op.n};
  Signature s{{f32("x", image), f32("k1", out_shape(op))}, {f32("next", image)}, {}};
  if (op.second) s.reads.push_back(f32("k2", out_shape(op)));
  return s;
}

// ---- scores -----------------------------------------------------------------------------------

Signature of(const ColumnSums& op) {
  return {{f32("x", {op.B * op.T, op.N})}, {}, {f64("sums", {3, op.N})}};
}

// ---- the disk ---------------------------------------------------------------------------------

Signature of(const Transfer& op) {
  const Arg x = typed(op.type, "x", {op.n});
  const Arg disk = typed(op.type, "disk", {op.n});
  switch (op.part) {
    case Transfer::Part::fetch_begin:
      return {{disk}, {x}, {}};
    case Transfer::Part::fetch_end:
      return {{}, {}, {x}};
    case Transfer::Part::store_begin:
      return {{x}, {disk}, {}};
    case Transfer::Part::store_end:
      return {{x}, {}, {}};
  }
  return {};
}

Signature of(const Exchange& op) {
  const Arg x = typed(op.type, "x", {op.n});
  if (op.sends()) return {{x}, {}, {}};
  if (op.begins()) return {{}, {x}, {}};
  return {{}, {}, {x}};
}

}  // namespace

Signature signature(const OpParams& params) {
  return std::visit([](const auto& op) { return of(op); }, params);
}

}  // namespace ebb
