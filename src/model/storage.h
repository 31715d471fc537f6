// How a step stores its numbers. fp32 throughout, unless the user allows less: then results change.
// Statistics, sums, softmax and the loss are fp32 always.
#pragma once

#include <algorithm>

#include "model/exchange_code.h"
#include "program/program.h"

namespace ebb {

// What the state of a tensor is named: one of these and the tensor's own name.
inline constexpr const char* kFirstMoment = "m.";
inline constexpr const char* kSecondMoment = "v.";
inline constexpr const char* kAverage = "ema.";
inline constexpr const char* kProjector = "q.";
inline constexpr const char* kMask = "mask.";  // which weights of a sparse one are left

inline Shape mask_shape(const ParamSpec& p) { return {p.rows(), mask_row_bytes(p.columns())}; }

struct Storage {
  // Of everything that has a row for each token. With bf16 the matrices of linear layers are worked
  // with in 16 bits too: a bf16 and, apart from it, what that is off by, together the fp32. With
  // fp16 they stay whole: that takes the same bytes and loses nothing.
  DType activation = DType::f32;
  DType gradient = DType::f32;     // of those matrices: bf16, summed in fp32 within a micro-batch
  Moments moments = Moments::f32;  // of Adam, of large tensors
  DType ema = DType::f32;          // of those matrices: bf16
  // Of the label table's gradient only so many rows, those that a batch touches, and of its update
  // too; 0: all. This loses nothing (program/ops_label.h).
  int64_t label_rows = 0;
  ExchangeCode exchange = {};  // of gradients, between groups of ranks
  // Of AdamW: the moments of matrices are of so many directions of their gradients
  // (program/ops_galore.h); 0: of all.
  int64_t galore_rank = 0;
  bool operator==(const Storage&) const = default;

  bool splits(const ParamSpec& p) const { return activation == DType::bf16 && p.product; }
  DType weight_of(const ParamSpec& p) const { return splits(p) ? DType::bf16 : DType::f32; }
  DType gradient_of(const ParamSpec& p) const { return p.product ? gradient : DType::f32; }
  bool in_rows(const ParamSpec& p) const { return label_rows > 0 && p.of_labels(); }
  Shape gradient_shape(const ParamSpec& p) const {
    return in_rows(p) ? Shape{label_rows, p.columns() + 1} : p.stored();
  }
  // Rows of a table are few, and each rank has others: they go as they are.
  bool sends_coded(const ParamSpec& p) const { return exchange.codes(p) && !in_rows(p); }
  // A matrix with no more directions is left as it is, and so is what is left of a sparse one.
  bool projects(const ParamSpec& p) const {
    return galore_rank > 0 && p.product && !p.sparse() &&
           std::min(p.rows(), p.columns()) > galore_rank;
  }
  DType ema_of(const ParamSpec& p) const { return p.product ? ema : DType::f32; }
  // What is small stays as it is: it would save little.
  Moments moments_of(const ParamSpec& p) const {
    constexpr int64_t kLeast = 1024;
    return p.shape.size() > 1 && element_count(p.shape) >= kLeast ? moments : Moments::f32;
  }
};

// What is kept beyond a lane rather than in memory, but for what is small.
struct Offload {
  bool state = false;    // moments and average
  bool weights = false;  // what they are of; with the state
  bool inputs = false;   // of the blocks, from the forward pass to the backward pass
  bool rests = false;    // of gradients: what codes have not sent
  Home lane = 0;
  int64_t memory_bytes = 0;  // that its transfers go through
  bool any() const { return state || weights || inputs || rests; }
  bool operator==(const Offload&) const = default;

  bool covers(const ParamSpec& p) const {
    constexpr int64_t kLeast = 1024;
    return p.trained() && p.shape.size() > 1 && element_count(p.shape) >= kLeast;
  }
  // Whether this part of a parameter's state is away.
  bool takes(const ParamSpec& p, Purpose purpose) const {
    return covers(p) && (purpose == Purpose::weight ? weights : state);
  }
  bool takes_rest(const ParamSpec& p) const { return covers(p) && rests; }
  Home home(bool away) const { return away ? lane : kOnDevice; }
  // The program with its buffers at home there.
  Program moved(Program program, const std::vector<Home>& homes) const;
};

// "fp32", or what is stored otherwise: "activations bf16, moments 8-bit".
std::string storage_text(const Storage& storage);

}  // namespace ebb
