// What the updates of all optimizers share: blocks of a tensor's gradient, weight and average on
// their way through fp32, however they are stored.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/float16.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/random_bits.h"
#include "kernels/cpu/vec.h"

namespace ebb::cpu {

// AnyUpdate: an op whose updates are w, [low], what is the optimizer's own, [ema].
template <typename AnyUpdate>
class Parameter {
 public:
  static constexpr int64_t kBlock = kMomentBlock;

  // `own`: how many updates are the optimizer's own.
  Parameter(const AnyUpdate& op, const Call& call, int own)
      : op_(op),
        call_(call),
        // A decay of 1 leaves the average as it is.
        ema_(op.ema && call.scalars->ema_decay < 1 ? first_own() + own : -1) {}

  int first_own() const { return op_.split ? 2 : 1; }  // in updates
  bool averages() const { return ema_ >= 0; }

  // Elements first .. first + n - 1, at most kBlock: where they lie, or widened into `memory`.
  const float* gradient(float* memory, int64_t first, int64_t n) const {
    if (op_.g == DType::f32) return call_.read(0) + first;
    widen(memory, call_.read<Bf16>(0) + first, n);
    return memory;
  }
  float* weight(float* memory, int64_t first, int64_t n) const {
    if (!op_.split) return call_.update(0) + first;
    const Bf16* high = call_.update<Bf16>(0) + first;
    const int16_t* low = call_.update<int16_t>(1) + first;
    for (int64_t i = 0; i < n; ++i) memory[i] = SplitFloat{high[i], low[i]}.whole();
    return memory;
  }
  float* average(float* memory, int64_t first, int64_t n) const {
    if (op_.average == DType::f32) return call_.update(ema_) + first;
    widen(memory, call_.update<Bf16>(ema_) + first, n);
    return memory;
  }

  // Back again; `values` are what weight() and average() gave.
  void put_weight(const float* values, int64_t first, int64_t n) const {
    if (!op_.split) return;
    Bf16* high = call_.update<Bf16>(0) + first;
    int16_t* low = call_.update<int16_t>(1) + first;
    for (int64_t i = 0; i < n; ++i) {
      const SplitFloat parts = SplitFloat::of(values[i]);
      high[i] = parts.high;
      low[i] = parts.low;
    }
  }
  // Up with the probability of what is cut off. All of them lie in one of the blocks of kBlock that
  // the tensor is made of.
  void put_average(const float* values, int64_t first, int64_t n) const {
    if (op_.average == DType::f32) return;
    uint32_t words[kRandomWords];
    random(words, Stream::ema_rounding, first);
    const uint32_t* lots = words + first % kBlock;
    Bf16* to = call_.update<Bf16>(ema_) + first;
    for (int64_t i = 0; i < n; ++i) {
      to[i].bits =
          static_cast<uint16_t>((std::bit_cast<uint32_t>(values[i]) + (lots[i] >> 16)) >> 16);
    }
  }

  // Random words of the block that an element lies in, keyed by (seed, step, tensor, block).
  void random(uint32_t* words, Stream stream, int64_t first) const {
    static_assert(kRandomWords == kBlock);
    random_words(words, call_.scalars->seed, stream, static_cast<uint32_t>(call_.scalars->step),
                 op_.tensor, static_cast<uint32_t>(first / kBlock));
  }

 private:
  const AnyUpdate& op_;
  const Call& call_;
  const int ema_;  // in updates; -1: no average, or not its turn
};

// blocks.run(first, n) for every block of the op's n elements, unless its norm is not finite.
template <typename Blocks, typename AnyUpdate>
void run_blocks(const AnyUpdate& op, const Call& call) {
  if (!std::isfinite(call.read(1)[0])) return;
  const Blocks blocks(op, call);
  parallel_range(op.blocks(), 16, kMomentBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kMomentBlock;
      blocks.run(first, std::min(kMomentBlock, op.n - first));
    }
  });
}

}  // namespace ebb::cpu
