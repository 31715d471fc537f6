// Twins of the ops on rows that labels pick.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/reference/refs.h"
#include "kernels/reference/update.h"

namespace ebb {

// The slot of a row, or the first empty one, which becomes the row's.
template <typename T>
T* slot_of(T* drows, int64_t D, int64_t row) {
  for (T* slot = drows;; slot += D + 1) {
    if (whole(slot[D]) == 0) slot[D] = static_cast<double>(row + 1);
    if (whole(slot[D]) == row + 1) return slot;
  }
}

template <typename T>
void reference(const LabelRowsBackward& op, const Refs<T>& r) {
  for (int64_t b = 0; b < op.B; ++b) {
    T* row = slot_of(r.updates[0], op.D, whole(r.reads[1][b]));
    for (int64_t i = 0; i < op.D; ++i) row[i] += r.reads[0][b * op.D + i];
  }
}

template <typename T>
void reference(const AddLabelRows& op, const Refs<T>& r) {
  for (int64_t s = 0; s < op.slots; ++s) {
    const T* x = r.reads[0] + s * (op.D + 1);
    if (whole(x[op.D]) == 0) continue;
    T* row = slot_of(r.updates[0], op.D, whole(x[op.D]) - 1);
    for (int64_t i = 0; i < op.D; ++i) row[i] += x[i];
  }
}

template <typename T>
void reference(const LabelRowsNorm& op, const Refs<T>& r) {
  T sum = 0;
  for (int64_t s = 0; s < op.slots; ++s) {
    const T* x = r.reads[0] + s * (op.D + 1);
    for (int64_t i = 0; whole(x[op.D]) > 0 && i < op.D; ++i) sum += square(x[i]);
  }
  r.writes[0][op.slot] = sum;
}

// One AdamW of one row after the other. Operands: w, m, v, done, history, [ema].
template <typename T, typename AnyOp>
class RowUpdates {
 public:
  RowUpdates(const AnyOp& op, const Refs<T>& r) : op_(op), r_(r), adam_(op.adam) { adam_.n = op.D; }

  int64_t updates() const { return whole(r_.updates[4][0]); }
  T* fields(int64_t update) const { return r_.updates[4] + 1 + update % kHistory * kHistoryFields; }

  void catch_up(int64_t row) const {
    const std::vector<T> none(op_.D, T(0)), clip = {T(1), T(1)};
    for (T& done = r_.updates[3][row]; whole(done) < updates(); done += 1.0) {
      const T* past = fields(whole(done));
      Scalars scalars;
      scalars.lr = static_cast<float>(real_part(past[0]));
      scalars.bias1 = static_cast<float>(real_part(past[1]));
      scalars.bias2 = static_cast<float>(real_part(past[2]));
      scalars.ema_decay = real_part(past[3]);
      update(row, none.data(), clip.data(), scalars);
    }
  }
  void update(int64_t row, const T* g, const T* clip, const Scalars& scalars) const {
    const int64_t at = row * op_.D;
    Refs<T> refs{{g, clip}, {}, {r_.updates[0] + at, r_.updates[1] + at, r_.updates[2] + at}};
    if (adam_.ema) refs.updates.push_back(r_.updates[5] + at);
    refs.scalars = &scalars;
    reference(adam_, refs);
  }

 private:
  const AnyOp& op_;
  const Refs<T>& r_;
  AdamW adam_;
};

template <typename T>
void reference(const LabelRowsUpdate& op, const Refs<T>& r) {
  if (!std::isfinite(real_part(r.reads[1][0]))) return;
  const RowUpdates<T, LabelRowsUpdate> rows(op, r);
  const int64_t first = rows.updates() % kHistory * op.rows_in_turn();
  for (int64_t row = first; row < std::min(op.rows, first + op.rows_in_turn()); ++row) {
    rows.catch_up(row);
  }
  for (int64_t s = 0; s < op.slots; ++s) {
    const T* x = r.reads[0] + s * (op.D + 1);
    if (whole(x[op.D]) == 0) continue;
    const int64_t row = whole(x[op.D]) - 1;
    rows.catch_up(row);
    rows.update(row, x, r.reads[1], *r.scalars);
    r.updates[3][row] += 1.0;
  }
  T* now = rows.fields(rows.updates());
  now[0] = static_cast<double>(r.scalars->lr);
  now[1] = static_cast<double>(r.scalars->bias1);
  now[2] = static_cast<double>(r.scalars->bias2);
  now[3] = r.scalars->ema_decay;
  r.updates[4][0] += 1.0;
}

template <typename T>
void reference(const LabelRowsCatchUp& op, const Refs<T>& r) {
  const RowUpdates<T, LabelRowsCatchUp> rows(op, r);
  for (int64_t b = 0; b < op.B; ++b) rows.catch_up(whole(r.reads[0][b]));
  for (int64_t row = 0; op.B == 0 && row < op.rows; ++row) rows.catch_up(row);
}

}  // namespace ebb
