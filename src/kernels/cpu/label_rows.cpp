// The rows of a table that labels pick: their gradient, and their updates when they are wanted.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/adam.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/norm_chunks.h"
#include "kernels/cpu/parallel.h"

namespace ebb::cpu {

namespace {

// The slots of a gradient: D numbers and the row's number plus one.
template <typename Number>
class Slots {
 public:
  Slots(Number* first, int64_t D, int64_t count) : first_(first), D_(D), count_(count) {}
  int64_t count() const { return count_; }
  Number* at(int64_t slot) const { return first_ + slot * (D_ + 1); }
  int64_t row(int64_t slot) const { return static_cast<int64_t>(at(slot)[D_]) - 1; }  // -1: empty

  // Where the row is, or from now on will be.
  Number* of(int64_t row) const {
    int64_t slot = 0;
    while (slot < count_ && this->row(slot) != row && this->row(slot) >= 0) ++slot;
    require(slot < count_, "label rows: more than {} are touched", count_);
    at(slot)[D_] = static_cast<float>(row + 1);
    return at(slot);
  }

 private:
  Number* first_;
  int64_t D_, count_;
};

}  // namespace

// In sample order: two samples may share a row.
void run(const LabelRowsBackward& op, const Call& call) {
  const float* de = call.read(0);
  const auto* y = call.read<int32_t>(1);
  const Slots<float> slots(call.update(0), op.D, op.slots);
  for (int64_t b = 0; b < op.B; ++b) {
    float* row = slots.of(y[b]);
    for (int64_t i = 0; i < op.D; ++i) row[i] += de[b * op.D + i];
  }
}

void run(const AddLabelRows& op, const Call& call) {
  const Slots<const float> from(call.read(0), op.D, op.slots);
  const Slots<float> to(call.update(0), op.D, op.slots);
  for (int64_t slot = 0; slot < op.slots && from.row(slot) >= 0; ++slot) {
    float* row = to.of(from.row(slot));
    for (int64_t i = 0; i < op.D; ++i) row[i] += from.at(slot)[i];
  }
}

// ---- the norm -----------------------------------------------------------------------------------

namespace {

// The chunks of a gradient that is zero but for some rows, which come in ascending order. A chunk
// of zeros would add a zero.
class ChunkSums {
 public:
  ChunkSums(float* chunk, int64_t n) : values_(chunk), n_(n) {}

  void add(int64_t first, const float* values, int64_t count) {
    while (count > 0) {
      begin(first / kNormChunk);
      const int64_t at = first % kNormChunk, taken = std::min(count, kNormChunk - at);
      std::copy_n(values, taken, values_ + at);
      first += taken;
      values += taken;
      count -= taken;
    }
  }
  double total() {
    begin(-1);
    return total_;
  }

 private:
  void begin(int64_t chunk) {
    if (chunk == chunk_) return;
    if (chunk_ >= 0) {
      total_ += chunk_squares(values_, std::min(kNormChunk, n_ - chunk_ * kNormChunk));
    }
    std::fill_n(values_, kNormChunk, 0.0f);
    chunk_ = chunk;
  }

  float* values_;
  int64_t n_, chunk_ = -1;
  double total_ = 0;
};

}  // namespace

int64_t scratch(const LabelRowsNorm& op) {
  return kNormChunk * static_cast<int64_t>(sizeof(float)) +
         op.slots * static_cast<int64_t>(sizeof(int32_t));
}

void run(const LabelRowsNorm& op, const Call& call) {
  const Slots<const float> slots(call.read(0), op.D, op.slots);
  auto* chunk = reinterpret_cast<float*>(call.scratch.data());
  auto* order = reinterpret_cast<int32_t*>(chunk + kNormChunk);
  int32_t touched = 0;
  for (; touched < op.slots && slots.row(touched) >= 0; ++touched) order[touched] = touched;
  std::sort(order, order + touched,
            [&](int32_t a, int32_t b) { return slots.row(a) < slots.row(b); });
  ChunkSums sums(chunk, op.rows * op.D);
  for (int32_t i = 0; i < touched; ++i) {
    sums.add(slots.row(order[i]) * op.D, slots.at(order[i]), op.D);
  }
  call.write<double>(0)[op.slot] = sums.total();
}

// ---- updates that a row has not seen ------------------------------------------------------------

namespace {

class Table {
 public:
  template <typename AnyOp>
  Table(const AnyOp& op, const Call& call)
      : rows_(op.rows),
        D_(op.D),
        adam_(op.adam),
        w_(call.update(0)),
        m_(call.update(1)),
        v_(call.update(2)),
        done_(call.update<int32_t>(3)),
        history_(call.update<double>(4)),
        ema_(op.adam.ema ? call.update(5) : nullptr),
        now_(*call.scalars) {}

  int32_t updates() const { return static_cast<int32_t>(history_[0]); }
  int32_t done(int64_t row) const { return done_[row]; }
  void set_done(int64_t row, int32_t updates) const { done_[row] = updates; }

  // The updates from this one on that had nothing to add to the row.
  void see(int64_t row, int32_t from) const {
    for (int32_t update = from; update < updates(); ++update) {
      const Scalars past = recorded(update);
      advance(row, nullptr, AdamRates(adam_, 1, past), past.ema_decay);
      if (update == from && is_still(row)) return;
    }
  }
  void see_all(int64_t begin, int64_t end) const {
    for (int64_t row = begin; row < end; ++row) {
      see(row, done_[row]);
      done_[row] = updates();
    }
  }

  void update(int64_t row, const float* g, float clip) const {
    see(row, done_[row]);
    advance(row, g, AdamRates(adam_, clip, now_), now_.ema_decay);
    done_[row] = updates() + 1;
  }

  // Those whose turn it is: each once in as many updates as are remembered.
  void see_in_turn(int64_t count) const {
    const int64_t begin = std::min(rows_, updates() % kHistory * count);
    const int64_t end = std::min(rows_, begin + count);
    parallel_range(end - begin, 1, D_,
                   [&](int64_t first, int64_t last) { see_all(begin + first, begin + last); });
  }

  void record() const {
    double* fields = history_ + 1 + updates() % kHistory * kHistoryFields;
    fields[0] = now_.lr;
    fields[1] = now_.bias1;
    fields[2] = now_.bias2;
    fields[3] = now_.ema_decay;
    history_[0] += 1;
  }

 private:
  Scalars recorded(int32_t update) const {
    const double* fields = history_ + 1 + update % kHistory * kHistoryFields;
    Scalars past;
    past.lr = static_cast<float>(fields[0]);
    past.bias1 = static_cast<float>(fields[1]);
    past.bias2 = static_cast<float>(fields[2]);
    past.ema_decay = fields[3];
    return past;
  }

  // By one update; without a gradient, zeros.
  void advance(int64_t row, const float* g, const AdamRates& rates, double ema_decay) const {
    static constexpr int64_t kZeros = 256;
    alignas(64) static constexpr float kZero[kZeros] = {};
    const bool averages = ema_ != nullptr && ema_decay < 1;
    for (int64_t i = 0; i < D_; i += kZeros) {
      const int64_t at = row * D_ + i;
      adam({g != nullptr ? g + i : kZero, w_ + at, m_ + at, v_ + at, averages ? ema_ + at : nullptr,
            std::min(kZeros, D_ - i)},
           rates);
    }
  }

  // No update without a gradient can change it: it never had one, and its average is itself. (To a
  // zero with a sign the average is not.)
  bool is_still(int64_t row) const {
    if (adam_.decay != 0) return false;
    for (int64_t i = row * D_; i < (row + 1) * D_; ++i) {
      if (m_[i] != 0 || v_[i] != 0) return false;
      if (ema_ != nullptr && (ema_[i] != w_[i] || (w_[i] == 0 && std::signbit(w_[i])))) {
        return false;
      }
    }
    return true;
  }

  const int64_t rows_, D_;
  const AdamW& adam_;
  float *w_, *m_, *v_;
  int32_t* done_;
  double* history_;
  float* ema_;
  const Scalars& now_;
};

}  // namespace

void run(const LabelRowsUpdate& op, const Call& call) {
  if (!std::isfinite(call.read(1)[0])) return;
  const float clip = call.read(1)[1];
  const Slots<const float> slots(call.read(0), op.D, op.slots);
  const Table table(op, call);
  table.see_in_turn(op.rows_in_turn());
  parallel_range(op.slots, 1, op.D, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end && slots.row(slot) >= 0; ++slot) {
      table.update(slots.row(slot), slots.at(slot), clip);
    }
  });
  table.record();
}

// A row that is wanted, and how many updates it has seen.
struct Behind {
  int32_t row, done;
};

int64_t scratch(const LabelRowsCatchUp& op) { return op.B * static_cast<int64_t>(sizeof(Behind)); }

// Each row once, whoever wants it: so that threads have rows of their own.
void run(const LabelRowsCatchUp& op, const Call& call) {
  const Table table(op, call);
  if (op.B == 0) {
    return parallel_range(op.rows, 1, op.D,
                          [&](int64_t begin, int64_t end) { table.see_all(begin, end); });
  }
  const auto* y = call.read<int32_t>(0);
  auto* behind = reinterpret_cast<Behind*>(call.scratch.data());
  int64_t count = 0;
  for (int64_t b = 0; b < op.B; ++b) {
    if (table.done(y[b]) == table.updates()) continue;
    behind[count++] = {y[b], table.done(y[b])};
    table.set_done(y[b], table.updates());
  }
  parallel_range(count, 1, op.D, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) table.see(behind[i].row, behind[i].done);
  });
}

}  // namespace ebb::cpu
