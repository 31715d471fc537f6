// The operations on a table's rows that labels pick. A batch touches few of them, and what is done
// for a step costs as much as these do.
//
// Their gradient, drows (slots, D + 1), is one row for each that was touched, in the order in which
// samples did, and behind its D numbers which row that is: its number plus one, 0 where the slot is
// empty.
//
// An update that nothing adds to still moves a row: its moments decay. A row sees those updates
// later, all of them, before it is read. For that the table has `done` (rows) i32, how many updates
// each row has seen, and `history` f64: how many there were, then of the last ones what they ran
// with.
#pragma once

#include <cstdint>

#include "program/ops_update.h"

namespace ebb {

inline constexpr int64_t kHistory = 1024;     // updates; no row is behind by more
inline constexpr int64_t kHistoryFields = 4;  // lr, bias1, bias2, ema_decay
inline constexpr int64_t kHistorySize = 1 + kHistory * kHistoryFields;

// y (B), table (rows, D) -> e (B, D)
struct LabelEmbed {
  static constexpr const char* kName = "label_embed";
  int64_t B, D, rows;
  double flops() const { return 0; }
};

// de (B, D), y (B); updates dtable (rows, D)
struct LabelEmbedBackward {
  static constexpr const char* kName = "label_embed_backward";
  int64_t B, D, rows;
  double flops() const { return 1.0 * B * D; }
};

// de (B, D), y (B); updates drows (slots, D + 1)
struct LabelRowsBackward {
  static constexpr const char* kName = "label_rows_backward";
  int64_t B, D, slots;
  LabelEmbedBackward measured_as() const { return {B, D, slots}; }
  double flops() const { return 1.0 * B * D; }
};

// x (slots, D + 1); updates drows (slots, D + 1): row by row
struct AddLabelRows {
  static constexpr const char* kName = "add_label_rows";
  int64_t D, slots;
  LabelEmbedBackward measured_as() const { return {slots, D, slots}; }
  double flops() const { return 1.0 * slots * D; }
};

// drows (slots, D + 1) -> norms (f64, element `slot`): what SquaredNorm says of the whole table's
// gradient, to the bit
struct LabelRowsNorm {
  static constexpr const char* kName = "label_rows_norm";
  int64_t rows, D, slots, slot;
  SquaredNorm measured_as() const { return {slots * D, 0}; }
  double flops() const { return 2.0 * slots * D; }
};

// drows (slots, D + 1), clip (2); updates w (rows, D), m (rows, D), v (rows, D), done, history,
// [ema (rows, D)]: AdamW of the touched rows, with what they have not seen before it. Some other
// rows, in turn, see what they have not, and the update goes into the history. Does nothing when
// the norm is not finite.
struct LabelRowsUpdate {
  static constexpr const char* kName = "label_rows_update";
  int64_t rows, D, slots;
  AdamW adam;  // of a row
  int64_t rows_in_turn() const { return (rows + kHistory - 1) / kHistory; }
  AdamW measured_as() const {
    AdamW some = adam;
    some.n = (slots + rows_in_turn()) * D;
    return some;
  }
  double flops() const { return measured_as().flops(); }
};

// [y (B)]; updates w, m, v, done, history, [ema] as above: these rows, or all where B is 0, see
// what they have not.
struct LabelRowsCatchUp {
  static constexpr const char* kName = "label_rows_catch_up";
  int64_t B, rows, D;
  AdamW adam;
  AdamW measured_as() const {
    AdamW some = adam;
    some.n = (B > 0 ? B : rows) * D;
    return some;
  }
  double flops() const { return measured_as().flops(); }
};

}  // namespace ebb
