// Inputs for one op, made from its signature: random, then what suits the op (labels in range,
// statistics that belong to the rows, ...). Every value is one that fp32 can hold, so a twin and a
// fast kernel start from the same numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/float16.h"
#include "kernels/reference/reference.h"
#include "program/signature.h"

namespace ebb {

// Compiled once, in ops_reference_test.cpp.
extern template void run_reference<double>(const OpParams&, const Refs<double>&);
extern template void run_reference<float>(const OpParams&, const Refs<float>&);
extern template void run_reference<std::complex<double>>(const OpParams&,
                                                         const Refs<std::complex<double>>&);

using Column = std::vector<double>;
using Random = std::mt19937_64;

// The contents of an op's buffers.
template <typename T>
struct OpValues {
  std::vector<std::vector<T>> reads, writes, updates;

  Refs<T> refs(const Scalars& scalars) {
    Refs<T> r;
    for (auto& c : reads) r.reads.push_back(c.data());
    for (auto& c : writes) r.writes.push_back(c.data());
    for (auto& c : updates) r.updates.push_back(c.data());
    r.scalars = &scalars;
    return r;
  }
};

// x as a buffer of the type holds it; whole numbers as they are.
inline double held(DType type, double x) {
  const auto wide = static_cast<float>(x);
  if (type == DType::bf16) return static_cast<double>(Bf16::nearest(wide));
  if (type == DType::f16) return static_cast<double>(F16::nearest(wide));
  return wide;
}

inline void hold(const std::vector<Arg>& args, std::vector<Column>& columns) {
  for (size_t i = 0; i < args.size(); ++i) {
    for (double& x : columns[i]) x = held(args[i].type, x);
  }
}

inline Column random_column(int64_t count, Random& random, double scale = 1) {
  std::normal_distribution<double> normal;
  Column c(count);
  for (double& x : c) x = static_cast<float>(scale * normal(random));
  return c;
}

// What is in a buffer before an op sets it: no result can contain it, so what stays was not set.
inline Column unset_column(const Arg& arg) {
  const double mark = arg.type == DType::i32  ? -1.0
                      : arg.type == DType::u8 ? 0.0  // bytes have no such mark
                                              : std::numeric_limits<double>::quiet_NaN();
  return Column(element_count(arg.shape), mark);
}

// What the twin of `forward` writes, given what it reads.
inline std::vector<Column> outputs_of(const OpParams& forward, std::vector<Column> reads) {
  OpValues<double> v{std::move(reads), {}, {}};
  for (const Arg& arg : signature(forward).writes) v.writes.push_back(unset_column(arg));
  const Scalars scalars;
  run_reference(forward, v.refs(scalars));
  return v.writes;
}

inline Column random_labels(int64_t count, int64_t classes, Random& random) {
  Column c(count);
  for (double& y : c) y = static_cast<double>(random() % classes);
  return c;
}

// The first and the last step, then any; for flow, any number in (0, 1).
inline Column random_times(int64_t count, Objective objective, Random& random) {
  Column c(count);
  for (size_t i = 0; i < c.size(); ++i) {
    c[i] = static_cast<double>(i == 0 ? 0 : i == 1 ? 999 : random() % kDiffusionSteps);
    if (objective == Objective::flow) c[i] = (c[i] + 0.5) / kDiffusionSteps;
  }
  return c;
}

// ---- what suits each op; most take any numbers -------------------------------------------------

template <typename AnyOp>
void suit(const AnyOp&, OpValues<double>&, Random&) {}

inline void suit(const ReadSamples& op, OpValues<double>& v, Random& random) {
  if (op.type == DType::u8) v.reads[0] = random_labels(std::ssize(v.reads[0]), 256, random);
}

// A mask with as many bits as are left, anywhere.
inline Column random_mask(int64_t rows, int64_t columns, int64_t left, Random& random) {
  std::vector<bool> there(static_cast<size_t>(rows * columns));
  std::fill_n(there.begin(), left, true);
  std::shuffle(there.begin(), there.end(), random);
  Column bytes;
  int64_t before = 0;
  for (int64_t j = 0; j < rows; ++j) {
    std::vector<int> row(static_cast<size_t>(mask_row_bytes(columns)));
    for (int i = 0; i < 8; ++i) row[i] = static_cast<int>(before >> (8 * i) & 255);
    for (int64_t k = 0; k < columns; ++k) {
      if (!there[j * columns + k]) continue;
      row[8 + k / 8] |= 1 << (k % 8);
      ++before;
    }
    bytes.insert(bytes.end(), row.begin(), row.end());
  }
  return bytes;
}

template <typename AnyLinear>
void suit_mask(const AnyLinear& op, OpValues<double>& v, Random& random) {
  if (op.left > 0) v.reads.back() = random_mask(op.N, op.K, op.left, random);
}
inline void suit(const Linear& op, OpValues<double>& v, Random& random) {
  suit_mask(op, v, random);
}
inline void suit(const LinearBackwardInput& op, OpValues<double>& v, Random& random) {
  suit_mask(op, v, random);
}
inline void suit(const LinearBackwardParams& op, OpValues<double>& v, Random& random) {
  suit_mask(op, v, random);
}

inline void suit(const DropLabels& op, OpValues<double>& v, Random& random) {
  v.reads[0] = random_labels(op.B, op.null_label, random);
}

inline void suit(const LabelsAndNull& op, OpValues<double>& v, Random& random) {
  v.reads[0] = random_labels(op.B, op.null_label, random);
}

inline void suit(const LabelEmbed& op, OpValues<double>& v, Random& random) {
  v.reads[0] = random_labels(op.B, op.rows, random);
}

inline void suit(const LabelEmbedBackward& op, OpValues<double>& v, Random& random) {
  v.reads[1] = random_labels(op.B, op.rows, random);
}

inline void suit(const Diffuse& op, OpValues<double>& v, Random& random) {
  v.reads[2] = random_times(op.B, op.objective, random);
}

inline void suit(const TimeEmbed& op, OpValues<double>& v, Random& random) {
  v.reads[0] = random_times(op.B, op.objective, random);
}

inline void suit(const AdaLNBackward& op, OpValues<double>& v, Random&) {
  const AdaLN forward{op.B, op.T, op.D, op.chunks, op.shift, op.scale};
  v.reads[2] = outputs_of(forward, {v.reads[1], v.reads[3]})[1];
}

inline void suit(const QkNormBackward& op, OpValues<double>& v, Random&) {
  const QkNorm forward{op.B, op.T, op.H, op.d, op.kind};
  const Column bias(op.d, 0.0);  // has no part in the statistics
  v.reads[2] = outputs_of(forward, {v.reads[1], v.reads[3], v.reads[4], bias, bias})[1];
}

inline void suit(const AttentionBackward& op, OpValues<double>& v, Random&) {
  const auto made = outputs_of(Attention{op.B, op.T, op.H, op.d}, {v.reads[1]});
  v.reads[2] = made[0];
  v.reads[3] = made[1];
}

// Images in [-1, 1], some elements exactly at the ends; a prediction that is off by some noise.
inline void suit(const DdpmLoss& op, OpValues<double>& v, Random& random) {
  Column &out = v.reads[0], &x = v.reads[1], &noise = v.reads[2];
  const int64_t count = op.C * op.n;
  for (int64_t i = 0; i < op.B * count; ++i) {
    x[i] = i % 3 == 0 ? (i % 2 == 0 ? 1.0 : -1.0) : static_cast<float>(std::tanh(x[i]));
    const int64_t at = i / count * (op.learn_sigma ? 2 : 1) * count + i % count;
    out[at] = noise[i] + 0.5 * out[at];
  }
  v.reads[4] = random_times(op.B, Objective::ddpm, random);
  v.reads[3] = outputs_of(Diffuse{op.B, count, Objective::ddpm}, {x, noise, v.reads[4]})[0];
}

inline void suit(const ClipScale&, OpValues<double>& v, Random&) {
  for (double& norm : v.reads[0]) norm = norm * norm;
}

inline void suit(const Lion&, OpValues<double>& v, Random&) {
  v.reads[1] = {1.75, 0.625};  // the norm, and a factor that clips
}

inline void suit(const Adafactor& op, OpValues<double>& v, Random&) {
  v.reads[1] = {1.75, 0.625};
  const size_t own = op.split ? 2 : 1;
  for (size_t i = own; i < own + (op.factored() ? 2 : 1); ++i) {
    for (double& second : v.updates[i]) second = second * second;
  }
}

inline void suit(const AdamW&, OpValues<double>& v, Random&) {
  v.reads[1] = {1.75, 0.625};  // the norm, and a factor that clips
  for (double& second : v.updates[2]) second = second * second;
}

// A projector's rows have unit length and stand at right angles.
inline void suit(const GaloreAdamW& op, OpValues<double>& v, Random&) {
  v.reads[1] = {1.75, 0.625};
  const size_t own = op.adam.split ? 2 : 1;
  for (double& second : v.updates[own + 2]) second = second * second;
  Column& q = v.updates[own];
  const int64_t n = op.short_side();
  for (int64_t i = 0; i < op.rank; ++i) {
    const auto row = q.begin() + i * n;
    for (int64_t k = 0; k <= i; ++k) {
      const auto other = q.begin() + k * n;
      const double share = std::inner_product(row, row + n, other, 0.0);
      for (int64_t j = 0; j < n; ++j) {
        k < i ? row[j] -= share * other[j] : row[j] /= std::sqrt(share);
      }
    }
  }
}

// A gradient in rows: some slots are taken, each by another row.
inline void suit_slots(Column& drows, int64_t rows, int64_t D, int64_t slots, Random& random) {
  Column all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), 1.0);
  std::shuffle(all.begin(), all.end(), random);
  for (int64_t s = 0; s < slots; ++s) {
    double* slot = drows.data() + s * (D + 1);
    slot[D] = s < std::min(rows, (slots + 1) / 2) ? all[s] : 0;
    if (slot[D] == 0) std::fill_n(slot, D, 0.0);
  }
}

inline void suit(const LabelRowsBackward& op, OpValues<double>& v, Random& random) {
  v.reads[1] = random_labels(op.B, op.slots, random);
  suit_slots(v.updates[0], op.slots, op.D, op.slots, random);
}

inline void suit(const AddLabelRows& op, OpValues<double>& v, Random& random) {
  suit_slots(v.reads[0], op.slots, op.D, op.slots, random);
  suit_slots(v.updates[0], op.slots, op.D, op.slots, random);
}

inline void suit(const LabelRowsNorm& op, OpValues<double>& v, Random& random) {
  suit_slots(v.reads[0], op.rows, op.D, op.slots, random);
}

// Seven updates, of which each row has seen some.
template <typename AnyOp>
void suit_table(const AnyOp& op, OpValues<double>& v, Random& random) {
  constexpr int64_t kUpdates = 7;
  for (double& second : v.updates[2]) second = second * second;
  v.updates[3] = random_labels(op.rows, kUpdates + 1, random);
  Column& history = v.updates[4];
  std::fill(history.begin(), history.end(), 0.0);
  history[0] = kUpdates;
  for (int64_t i = 0; i < kUpdates; ++i) {
    const auto k = static_cast<double>(i + 1);
    const double fields[] = {1e-3 * k, 1 - std::pow(0.9, k), 1 - std::pow(0.999, k),
                             k < 3 ? 1 : 0.5};
    std::copy(std::begin(fields), std::end(fields), history.begin() + 1 + i * kHistoryFields);
  }
}

inline void suit(const LabelRowsUpdate& op, OpValues<double>& v, Random& random) {
  suit_slots(v.reads[0], op.rows, op.D, op.slots, random);
  v.reads[1] = {1.75, 0.625};
  suit_table(op, v, random);
}

inline void suit(const LabelRowsCatchUp& op, OpValues<double>& v, Random& random) {
  if (op.B > 0) v.reads[0] = random_labels(op.B, op.rows, random);
  suit_table(op, v, random);
}

// A gate that is open: the norm, and a factor that clips.
inline const Column kOpenGate = {1.75, 0.625};

inline void suit(const EncodeBf16Feedback&, OpValues<double>& v, Random&) {
  v.reads[1] = kOpenGate;
}

inline void suit(const AddInt8& op, OpValues<double>& v, Random& random) {
  v.reads[0] = random_labels(op.n, 256, random);
}

inline void suit(const EncodeTopK&, OpValues<double>& v, Random&) { v.reads[1] = kOpenGate; }

inline void suit(const AddTopK& op, OpValues<double>& v, Random& random) {
  Column all(static_cast<size_t>(op.n));
  std::iota(all.begin(), all.end(), 0.0);
  std::shuffle(all.begin(), all.end(), random);
  v.reads[0].assign(all.begin(), all.begin() + op.k);
  std::sort(v.reads[0].begin(), v.reads[0].end());
}

inline void suit(const PowerProject&, OpValues<double>& v, Random&) { v.reads[1] = kOpenGate; }
inline void suit(const PowerBack&, OpValues<double>& v, Random&) { v.reads[0] = kOpenGate; }
inline void suit(const PowerKeep&, OpValues<double>& v, Random&) { v.reads[0] = kOpenGate; }
inline void suit(const SignEncode&, OpValues<double>& v, Random&) { v.reads[1] = kOpenGate; }

inline void suit(const SignMomentum&, OpValues<double>& v, Random&) { v.reads[1] = kOpenGate; }

inline void suit(const SignAdd& op, OpValues<double>& v, Random& random) {
  v.reads[0] = random_labels(sign_bytes(op.n), 256, random);
}

inline void suit(const SignKeep& op, OpValues<double>& v, Random& random) {
  v.reads[0] = random_labels(sign_bytes(op.n), 256, random);
  v.reads[2] = kOpenGate;
}

inline OpValues<double> make_inputs(const OpParams& params, Random& random, double scale) {
  const Signature s = signature(params);
  OpValues<double> v;
  for (const Arg& arg : s.reads) {
    v.reads.push_back(random_column(element_count(arg.shape), random, scale));
  }
  for (const Arg& arg : s.writes) v.writes.push_back(unset_column(arg));
  for (const Arg& arg : s.updates) {
    v.updates.push_back(random_column(element_count(arg.shape), random));
  }
  hold(s.reads, v.reads);
  std::visit([&](const auto& op) { suit(op, v, random); }, params);
  hold(s.reads, v.reads);
  hold(s.updates, v.updates);
  return v;
}

}  // namespace ebb
