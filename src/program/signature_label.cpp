#include "program/signature_label.h"

#include "program/signature_args.h"

namespace ebb {

namespace {

Shape rows_shape(int64_t slots, int64_t D) { return {slots, D + 1}; }

template <typename AnyOp>
std::vector<Arg> table_state(const AnyOp& op) {
  const Shape table = {op.rows, op.D};
  std::vector<Arg> state = {f32("w", table), f32("m", table), f32("v", table),
                            i32("done", {op.rows}), f64("history", {kHistorySize})};
  if (op.adam.ema) state.push_back(f32("ema", table));
  return state;
}

}  // namespace

Signature of(const LabelEmbed& op) {
  return {{i32("y", {op.B}), f32("table", {op.rows, op.D})}, {f32("e", {op.B, op.D})}, {}};
}

Signature of(const LabelEmbedBackward& op) {
  return {{f32("de", {op.B, op.D}), i32("y", {op.B})}, {}, {f32("dtable", {op.rows, op.D})}};
}

Signature of(const LabelRowsBackward& op) {
  return {
      {f32("de", {op.B, op.D}), i32("y", {op.B})}, {}, {f32("drows", rows_shape(op.slots, op.D))}};
}

Signature of(const AddLabelRows& op) {
  const Shape shape = rows_shape(op.slots, op.D);
  return {{f32("x", shape)}, {}, {f32("drows", shape)}};
}

Signature of(const LabelRowsNorm& op) {
  return {{f32("drows", rows_shape(op.slots, op.D))}, {or_more(f64("norms", {op.slot + 1}))}, {}};
}

Signature of(const LabelRowsUpdate& op) {
  return {{f32("drows", rows_shape(op.slots, op.D)), f32("clip", {2})}, {}, table_state(op)};
}

Signature of(const LabelRowsCatchUp& op) {
  Signature s{{}, {}, table_state(op)};
  if (op.B > 0) s.reads.push_back(i32("y", {op.B}));
  return s;
}

}  // namespace ebb
