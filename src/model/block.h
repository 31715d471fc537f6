// One DiT block: the page to read against the paper.
#pragma once

#include <array>

#include "model/keep.h"
#include "model/layers.h"

namespace ebb {

// What there is of a block's tensors at some point of the program. B samples; S of them have their
// rows between the products here, which are all but where ranks share them (TokenRows).
struct BlockTensors {
  Buf x;                               // (S*T, D)  the block's input
  Buf silu_c;                          // (B, D)    SiLU of the condition, shared by all blocks
  std::array<Buf, kBlockSlots> made;   // by Slot; empty: not there
  std::array<Buf, kBlockSlots> aside;  // what its op writes besides: statistics, log-sum-exp
  KeepSet keep;                        // of those, what outlives the forward pass
  bool backward = false;               // the forward pass is over
};

class Block {
 public:
  Block(const DitConfig& config, int64_t index, int64_t batch, Params& params);

  // out (S*T, D), the next block's input. All that backward may read is what it returns.
  BlockTensors forward(Builder& b, Buf out, Buf x, Buf silu_c, const KeepSet& keep) const;

  // dx: in, the gradient of the block's output; afterwards, that of its input. dsilu_c: what the
  // layers after this one have sent back to the condition; this block's share is added.
  void backward(Builder& b, Buf dx, Buf dsilu_c, BlockTensors tensors) const;

 private:
  // The tensor, made now (after what it is made of) if it is not there.
  Buf need(Builder& b, BlockTensors& t, Slot slot) const;
  void make(Builder& b, BlockTensors& t, Slot slot) const;
  // Each adds what flows through its half to dx, and writes its chunks of dmod.
  void mlp_half_backward(Builder& b, Buf dx, Buf dmod, BlockTensors& t, Buf y) const;
  void attention_half_backward(Builder& b, Buf dx, Buf dmod, BlockTensors& t) const;
  Buf attention_backward(Builder& b, BlockTensors& t, Buf d_o) const;
  // Where ranks have parts of the block: the modulation, of which each makes some columns and adds
  // their part to dsilu_c; and a layer whose outputs are sums of which each makes a part.
  void modulation(Builder& b, Buf silu_c, Buf mod) const;
  Buf modulation_backward(Builder& b, Buf dmod, Buf silu_c) const;
  void sum_of_parts(Builder& b, const LinearLayer& layer, const char* label, Buf x, Buf y) const;

  int64_t index_, B_, T_, D_, H_, d_, mlp_;
  int64_t chunks_, of_mlp_;  // of the modulation; the first of the MLP's
  QkNormKind qk_norm_;
  DType type_;  // of what has a row for each token
  std::string name_;
  Params* params_;
  TokenRows rows_;  // between the products; these take and make those of all samples
  LinearLayer modulation_, qkv_, proj_, fc1_, fc2_;
};

}  // namespace ebb
