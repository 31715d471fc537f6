// One kernel call of the program, and the numbers that change between runs.
#pragma once

#include <array>
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
  float frozen_bias2 = 1;       // bias2 of the update after which second moments were frozen
  double update = 1;            // the number of this update, from 1
  double ema_decay = 0;         // of this step
  float loss_scale = 1;         // a power of two that gradients carry until they are used
  float guidance = 1;           // sampling
  std::array<float, 2> time{};  // sampling: the times of this step's network calls
  std::array<float, 8> coef{};  // sampling: the coefficients of this step
};

}  // namespace ebb
