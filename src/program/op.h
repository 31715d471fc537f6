// One kernel call of the program, and what a device needs to run it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "program/buffer.h"
#include "program/ops.h"

namespace ebb {

struct Op {
  std::string name;   // "block3.attn.qkv.forward"
  std::string layer;  // "block3"
  OpParams params;
  std::vector<Buf> reads, writes, updates;
  Buf scratch;  // lives for this op alone; absent when the kernel needs none

  const char* kind() const;
  double flops() const;
};

// The numbers that change from one run of a program to the next.
struct Scalars {
  uint64_t seed = 0;
  int64_t step = 0;             // keys the random numbers,
  int64_t first_sample = 0;     // with the place of the program's first sample
  float lr = 0;                 // of this step
  float bias1 = 1, bias2 = 1;   // 1 - beta^k of Adam
  double ema_decay = 0;         // of this step
  float loss_scale = 1;         // a power of two that gradients carry until they are used
  float guidance = 1;           // sampling
  std::array<float, 2> time{};  // sampling: the times of this step's network calls
  std::array<float, 8> coef{};  // sampling: the coefficients of this step
};

// An op's buffers while it runs, in the order that the op's comment names them.
class Call {
 public:
  std::span<const std::byte* const> reads;
  std::span<std::byte*const> writes, updates;
  std::span<std::byte> scratch;
  const Scalars* scalars = nullptr;
  int64_t iteration = 0;  // of the loop that the op stands in

  template <typename T = float>
  const T* read(int i) const {
    return reinterpret_cast<const T*>(reads[i]);
  }
  // Of a call that is not made yet there are none.
  const void* read_or_null(size_t i) const { return i < reads.size() ? reads[i] : nullptr; }
  template <typename T = float>
  T* write(int i) const {
    return reinterpret_cast<T*>(writes[i]);
  }
  template <typename T = float>
  T* update(int i) const {
    return reinterpret_cast<T*>(updates[i]);
  }
};

// A device runs ops. Scratch that a kernel needs is asked for while the program is written.
class Device {
 public:
  virtual ~Device() = default;
  virtual int64_t scratch_bytes(const OpParams& params) const = 0;
  virtual void run(const OpParams& params, const Call& call) const = 0;
};

}  // namespace ebb
