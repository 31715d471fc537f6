// Every operation there is: one struct each, holding its sizes and constants. The comment names
// its buffers in order, as "reads -> writes" and "updates":
//   read    never changed,
//   write   set without looking at what was there (a part of the buffer is allowed),
//   update  read and changed.
// Activation gradients are set; parameter gradients are added (they are updates).
// Sizes: B samples, T tokens, D width, H heads, d head width, R rows, n elements, K/N linear
// in/out. Labels are i32, everything else f32 unless stated. [x] is there only if the flag says so.
// `type` is how an op's activations are stored: what has a row for every token, gradients included.
// Statistics, modulation and what has a row for every sample stay f32.
#pragma once

#include <cstdint>
#include <variant>

#include "base/rng.h"
#include "program/dtype.h"
#include "program/ops_exchange.h"
#include "program/ops_galore.h"
#include "program/ops_label.h"
#include "program/ops_update.h"

namespace ebb {

enum class Objective : uint8_t { ddpm, flow };
enum class TimeSampling : uint8_t { uniform, logit_normal };
enum class QkNormKind : uint8_t { none, layer, rms };

inline constexpr int kDiffusionSteps = 1000;
inline constexpr int kTimeFeatures = 256;
inline constexpr double kNormEps = 1e-6;

// ---- samples -----------------------------------------------------------------------------------

// -> stored (B, n) of `type`, [y (B)]: samples of the batch from first_sample on, as the run's feed
// has them (program/feed.h); each time round a loop goes on by B.
struct TakeSamples {
  static constexpr const char* kName = "take_samples";
  int64_t B, n;
  DType type;
  bool labelled;
  int64_t first_sample = 0;
  double flops() const { return 0; }
};

// stored (B, C, S, S) of `type` -> x (B, C, S, S): pixels (u8) as v / 127.5 - 1, else as they are.
// With `mirror` each left to right or not, by its place in the run: step * batch + that in it.
struct ReadSamples {
  static constexpr const char* kName = "read_samples";
  int64_t B, C, S;
  DType type;
  bool mirror = false;
  int64_t batch = 0;
  int64_t first_sample = 0;
  double flops() const { return 1.0 * B * C * S * S; }
};

// ---- noise, time, labels -------------------------------------------------------------------

// -> noise (B, n), standard normal, keyed by (seed, step, sample, element). A sample counts from
// the scalar first_sample plus the op's own; each time round a loop goes on by B.
struct FillNormal {
  static constexpr const char* kName = "fill_normal";
  int64_t B, n;
  Stream stream;
  int64_t first_sample = 0;
  double flops() const { return 20.0 * B * n; }
};

// -> t (B): a whole number in [0, 1000) for ddpm, a number in (0, 1) for flow.
struct DrawTimes {
  static constexpr const char* kName = "draw_times";
  int64_t B;
  Objective objective;
  TimeSampling sampling;
  int64_t first_sample = 0;
  double flops() const { return 20.0 * B; }
};

// y (B) -> dropped (B): each label becomes `null_label` with probability p.
struct DropLabels {
  static constexpr const char* kName = "drop_labels";
  int64_t B;
  int32_t null_label;
  float p;
  int64_t first_sample = 0;
  double flops() const { return 0; }
};

// x (B, n), noise (B, n), t (B) -> xt (B, n)
struct Diffuse {
  static constexpr const char* kName = "diffuse";
  int64_t B, n;
  Objective objective;
  double flops() const { return 3.0 * B * n; }
};

// -> t (B), every element the scalar time[index]
struct FillTime {
  static constexpr const char* kName = "fill_time";
  int64_t B;
  int index;
  double flops() const { return 0; }
};

// ---- embedders and the image <-> token rearrangements ----------------------------------------

// image (B, C, S, S) -> patches (B*T, C*p*p), a patch ordered (channel, row, column)
struct Patchify {
  static constexpr const char* kName = "patchify";
  int64_t B, C, S, p;
  double flops() const { return 0; }
};

// tokens (B*T, p*p*C), a token ordered (row, column, channel) -> image (B, C, S, S)
struct Unpatchify {
  static constexpr const char* kName = "unpatchify";
  int64_t B, C, S, p;
  double flops() const { return 0; }
};

// dimage (B, C, S, S) -> dtokens (B*T, p*p*C)
struct UnpatchifyBackward {
  static constexpr const char* kName = "unpatchify_backward";
  int64_t B, C, S, p;
  double flops() const { return 0; }
};

// pos (T, D); updates tokens (B*T, D): tokens += pos
struct AddPositions {
  static constexpr const char* kName = "add_positions";
  int64_t B, T, D;
  DType type = DType::f32;
  double flops() const { return 1.0 * B * T * D; }
};

// t (B) -> features (B, 256): [cos(t f_k) | sin(t f_k)], f_k = 10000^(-k/128); flow uses 1000 t
struct TimeEmbed {
  static constexpr const char* kName = "time_embed";
  int64_t B;
  Objective objective;
  double flops() const { return 20.0 * B * kTimeFeatures; }
};

// ---- linear -----------------------------------------------------------------------------------

enum class LinearEnd : uint8_t {
  plain,
  gelu,        // y is gelu(x wᵀ + b)
  gelu_aside,  // g is gelu(y)
};

// Where `left` is not 0, only so many elements of w (N, K), or of dw, are there, one after the
// other in the order of rows, and a mask says which: for each row 64-bit words, first how many are
// left in the rows before it, then a bit for each column, the lowest first.
constexpr int64_t mask_row_bytes(int64_t K) { return 8 * (1 + (K + 63) / 64); }

// x (R, K), w (N, K), b (N), [mask] -> y (R, N) = x wᵀ + b, [g (R, N)]. GELU sees y as it would be
// stored, whether it is or not.
struct Linear {
  static constexpr const char* kName = "linear";
  int64_t R, K, N;
  LinearEnd end = LinearEnd::plain;
  DType x = DType::f32, w = DType::f32, y = DType::f32;  // g is stored as y is
  int64_t left = 0;
  double flops() const { return 2.0 * R * K * N; }
};

// dy (R, N), w (N, K), [u (R, K)], [mask] -> dx (R, K) = dy w, [times the slope of gelu at u]
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_backward_input";
  int64_t R, K, N;
  bool gelu = false;
  DType dy = DType::f32, w = DType::f32, dx = DType::f32;  // u is stored as dx is
  int64_t left = 0;
  double flops() const { return 2.0 * R * K * N; }
};

// dy (R, N), x (R, K), [mask]; updates dw (N, K) += dyᵀ x, db (N) += column sums of dy or, where
// the gradients begin, -> dw, db
struct LinearBackwardParams {
  static constexpr const char* kName = "linear_backward_params";
  int64_t R, K, N;
  bool begins = false;
  DType dy = DType::f32, x = DType::f32, dw = DType::f32;  // db is f32
  int64_t left = 0;
  double flops() const { return 2.0 * R * K * N; }
};

// ---- elementwise ------------------------------------------------------------------------------

// x (n) -> y (n) = x sigmoid(x)
struct Silu {
  static constexpr const char* kName = "silu";
  int64_t n;
  double flops() const { return 12.0 * n; }
};

// dy (n), x (n) -> dx (n)
struct SiluBackward {
  static constexpr const char* kName = "silu_backward";
  int64_t n;
  double flops() const { return 16.0 * n; }
};

// x (n) -> y (n), tanh form
struct Gelu {
  static constexpr const char* kName = "gelu";
  int64_t n;
  DType type = DType::f32;
  double flops() const { return 20.0 * n; }
};

// a (n), b (n) -> y (n) = a + b
struct Add {
  static constexpr const char* kName = "add";
  int64_t n;
  double flops() const { return 1.0 * n; }
};

// x (n); updates y (n): y += x
struct AddTo {
  static constexpr const char* kName = "add_to";
  int64_t n;
  double flops() const { return 1.0 * n; }
};

// x (n) -> y (2n) = x, x
struct Repeat {
  static constexpr const char* kName = "repeat";
  int64_t n;
  double flops() const { return 0; }
};

// x (R, K) -> y (R, N): columns [from, from + n) of x are columns [to, to + n) of y, of which the
// others stay as they are
struct CopyColumns {
  static constexpr const char* kName = "copy_columns";
  int64_t R, K, N, n, from, to;
  DType type = DType::f32;
  Repeat measured_as() const { return {R * n}; }
  double flops() const { return 0; }
};

// -> x (n) = 0
struct Zero {
  static constexpr const char* kName = "zero";
  int64_t n;
  DType type = DType::f32;
  double flops() const { return 0; }
};

// ---- normalisation and modulation. mod is (B, chunks*D); shift, scale, gate name a chunk. ------

// x (B*T, D), mod -> y (B*T, D) = norm(x) (1 + scale) + shift, stats (B*T, 2): mean, 1/std
struct AdaLN {
  static constexpr const char* kName = "adaln";
  int64_t B, T, D, chunks, shift, scale;
  DType type = DType::f32;
  double flops() const { return 9.0 * B * T * D; }
};

// dy (B*T, D), x, stats, mod -> dmod (chunks shift and scale), dx (B*T, D)
// With `residual`, dx is an update: what flows through the norm is added to it.
struct AdaLNBackward {
  static constexpr const char* kName = "adaln_backward";
  int64_t B, T, D, chunks, shift, scale;
  bool residual;
  DType type = DType::f32;
  double flops() const { return 16.0 * B * T * D; }
};

// x (B*T, D), y (B*T, D), mod -> out (B*T, D) = x + gate * y
struct AddGated {
  static constexpr const char* kName = "add_gated";
  int64_t B, T, D, chunks, gate;
  DType type = DType::f32;
  double flops() const { return 2.0 * B * T * D; }
};

// dout (B*T, D), y (B*T, D), mod -> dy (B*T, D), dmod (chunk gate). dx is dout itself.
struct AddGatedBackward {
  static constexpr const char* kName = "add_gated_backward";
  int64_t B, T, D, chunks, gate;
  DType type = DType::f32;
  double flops() const { return 3.0 * B * T * D; }
};

// qkv (B*T, 3*H*d), qw (d), kw (d), [qb (d), kb (d)] -> normed (B*T, 3*H*d), stats (B*T, 2*H, 2)
// q and k normalised over each head; v copied. stats: mean (0 for rms), 1/std. Biases with `layer`.
struct QkNorm {
  static constexpr const char* kName = "qk_norm";
  int64_t B, T, H, d;
  QkNormKind kind;
  DType type = DType::f32;
  double flops() const { return 14.0 * B * T * H * d; }
};

// dnormed, qkv, stats, qw, kw -> dqkv; updates dqw, dkw, [dqb, dkb]
struct QkNormBackward {
  static constexpr const char* kName = "qk_norm_backward";
  int64_t B, T, H, d;
  QkNormKind kind;
  DType type = DType::f32;
  double flops() const { return 24.0 * B * T * H * d; }
};

// ---- attention --------------------------------------------------------------------------------

// qkv (B*T, 3*H*d), rows q|k|v, each head-major -> o (B*T, H*d), lse (B, H, T)
struct Attention {
  static constexpr const char* kName = "attention";
  int64_t B, T, H, d;
  DType type = DType::f32;
  double flops() const { return 4.0 * B * H * T * T * d; }
};

// do (B*T, H*d), qkv, o, lse -> dqkv (B*T, 3*H*d)
struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  int64_t B, T, H, d;
  DType type = DType::f32;
  double flops() const { return 10.0 * B * H * T * T * d; }
};

// ---- losses -----------------------------------------------------------------------------------

// out (B, C or 2C, n), x (B, C, n), noise, xt, t (B) -> losses (B), dout
// losses[s] is the whole loss of sample s; dout is the gradient of weight * sum of losses, times
// the scalar loss_scale. 2C channels with learn_sigma: noise prediction, then the variance
// interpolation v.
struct DdpmLoss {
  static constexpr const char* kName = "ddpm_loss";
  int64_t B, C, n;
  bool learn_sigma;
  float weight;
  double flops() const { return (learn_sigma ? 30.0 : 4.0) * B * C * n; }
};

// out (B, C or 2C, n), x (B, C, n), noise -> losses (B), dout. Extra channels get no gradient.
struct FlowLoss {
  static constexpr const char* kName = "flow_loss";
  int64_t B, C, n;
  bool learn_sigma;
  float weight;
  double flops() const { return 5.0 * B * C * n; }
};

// losses (B); updates total (1): total += weight * sum of losses
struct SumLosses {
  static constexpr const char* kName = "sum_losses";
  int64_t B;
  float weight;
  double flops() const { return 1.0 * B; }
};

// ---- sampling ---------------------------------------------------------------------------------

// y (B) -> labels (2B): y, then B times null_label
struct LabelsAndNull {
  static constexpr const char* kName = "labels_and_null";
  int64_t B;
  int32_t null_label;
  double flops() const { return 0; }
};

// out (2B, Cout, n): conditional, then unconditional -> guided (B, Cout, n).
// The first `guided` channels are u + scale (c - u); the others are c.
struct Guide {
  static constexpr const char* kName = "guide";
  int64_t B, channels, n, guided;
  double flops() const { return 3.0 * B * channels * n; }
};

// x (B, C, n), out (B, C or 2C, n), [z (B, C, n) when noisy] -> next (B, C, n)
// x0 = coef[0] x - coef[1] eps, clamped to [-1, 1] if clip; next = coef[2] x0 + coef[3] x +
// coef[4] eps + sigma z, where sigma = exp(logvar / 2) and logvar is coef[5], or interpolated with
// v between coef[5] (v = -1) and coef[6] (v = 1) with learn_sigma. When clip moved x0, eps is made
// consistent with it: eps = (coef[0] x - x0) / coef[1].
struct DiffusionStep {
  static constexpr const char* kName = "diffusion_step";
  int64_t B, C, n;
  bool learn_sigma, noisy, clip;
  double flops() const { return 12.0 * B * C * n; }
};

// x (B, C, n), k1 (B, Cout, n), [k2] -> next (B, C, n) = x + coef[first] k1 [+ coef[first + 1] k2]
struct FlowStep {
  static constexpr const char* kName = "flow_step";
  int64_t B, C, n;
  bool learn_sigma;  // k has 2C channels; only the first C are used
  bool second;
  int first;
  double flops() const { return 4.0 * B * C * n; }
};

// ---- scores -----------------------------------------------------------------------------------

// x (B*T, N); updates sums (3, N) f64. Of each column, sample by sample: the square of the sample's
// mean of |x|, its mean of x, and its mean of x^2.
struct ColumnSums {
  static constexpr const char* kName = "column_sums";
  int64_t B, T, N;
  double flops() const { return 5.0 * B * T * N; }
};

// ---- lanes -----------------------------------------------------------------------------------

// n elements between the device's memory and a buffer whose home lies beyond a lane, beside the ops
// that stand between its begin and its end.
//   fetch_begin  away (n) -> x (n)      fetch_end  updates x: there from here on
//   store_begin  x (n) -> away (n)      store_end  reads x: written from here on
// Those of a lane are carried out in the order in which they begin.
struct Transfer {
  static constexpr const char* kName = "transfer";
  enum class Part : uint8_t { fetch_begin, fetch_end, store_begin, store_end };
  Part part;
  int64_t n;
  DType type = DType::f32;
  int lane = 0;
  bool begins() const { return part == Part::fetch_begin || part == Part::store_begin; }
  bool fetches() const { return part == Part::fetch_begin || part == Part::fetch_end; }
  double flops() const { return 0; }
};

// ---- ranks -----------------------------------------------------------------------------------

// n elements to or from another rank, beside the ops, in two parts, so that what is on its way is
// planned:
//   send_begin  reads x (n)         send_end     reads x: taken from here on
//   receive_begin  -> x (n)         receive_end  updates x: there from here on
// Those of two ranks and one channel are matched in the order in which each side begins them.
struct Exchange {
  static constexpr const char* kName = "exchange";
  enum class Part : uint8_t { send_begin, send_end, receive_begin, receive_end };
  Part part;
  int64_t n;
  DType type = DType::f32;
  int peer = 0, channel = 0;
  bool begins() const { return part == Part::send_begin || part == Part::receive_begin; }
  bool sends() const { return part == Part::send_begin || part == Part::send_end; }
  int64_t bytes() const { return n * dtype_bytes(type); }
  double flops() const { return 0; }
};

// New ones go last: the inputs of ops' tests are keyed by their place.
using OpParams = std::variant<
    TakeSamples, ReadSamples, FillNormal, DrawTimes, DropLabels, Diffuse, FillTime, Patchify,
    Unpatchify, UnpatchifyBackward, AddPositions, TimeEmbed, LabelEmbed, LabelEmbedBackward, Linear,
    LinearBackwardInput, LinearBackwardParams, Silu, SiluBackward, Gelu, Add, AddTo, Repeat, Zero,
    AdaLN, AdaLNBackward, AddGated, AddGatedBackward, QkNorm, QkNormBackward, Attention,
    AttentionBackward, DdpmLoss, FlowLoss, SumLosses, SquaredNorm, ClipScale, AdamW, Lion,
    Adafactor, StructureSquares, Shrink, LabelsAndNull, Guide, DiffusionStep, FlowStep, ColumnSums,
    Transfer, Exchange, LabelRowsBackward, AddLabelRows, LabelRowsNorm, LabelRowsUpdate,
    LabelRowsCatchUp, GateCodes, EncodeBf16, EncodeBf16Feedback, AddBf16, EncodeInt8, AddInt8,
    EncodeTopK, AddTopK, PowerProject, Orthonormalize, PowerBack, PowerSum, PowerKeep, SignEncode,
    SignAdd, GaloreAdamW, CopyColumns, SignMomentum, SignKeep>;

}  // namespace ebb
