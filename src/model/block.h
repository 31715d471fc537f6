// One DiT block: the page to read against the paper.
#pragma once

#include "model/layers.h"

namespace ebb {

// All that the backward pass of a block may read. B samples, T tokens, D width, A = heads x head
// width, M = MLP width.
struct BlockSaved {
  Buf x;           // (B*T, D)   the block's input
  Buf silu_c;      // (B, D)     SiLU of the condition, shared by all blocks
  Buf mod;         // (B, 6D)    shift, scale, gate of attention; shift, scale, gate of the MLP
  Buf m1, stats1;  // (B*T, D), (B*T, 2)
  Buf qkv;         // (B*T, 3A)  as the linear layer made it
  Buf qkv_normed;  // (B*T, 3A)  qkv itself without qk-norm
  Buf qk_stats;    // (B*T, 4H)  only with qk-norm
  Buf o, lse;      // (B*T, A), (B, H, T)
  Buf proj;        // (B*T, D)
  Buf x1;          // (B*T, D)   after the attention half
  Buf m2, stats2;  // (B*T, D), (B*T, 2)
  Buf u, g;        // (B*T, M)   before and after GELU
  Buf y;           // (B*T, D)
  Buf out;         // (B*T, D)
};

class Block {
 public:
  Block(const DitConfig& config, int64_t index, int64_t batch, Params& params);

  BlockSaved forward(Builder& b, Buf x, Buf silu_c) const;

  struct Gradients {
    Buf dx;       // (B*T, D)
    Buf dsilu_c;  // (B, D)
  };
  // dsilu_c is what the layers after this one have sent back to the condition.
  Gradients backward(Builder& b, const BlockSaved& s, Buf dout, Buf dsilu_c) const;

 private:
  Buf attention(Builder& b, BlockSaved& s) const;
  Buf attention_backward(Builder& b, const BlockSaved& s, Buf d_o) const;

  int64_t index_, B_, T_, D_, H_, d_;
  QkNormKind qk_norm_;
  std::string name_;
  Params* params_;
  LinearLayer modulation_, qkv_, proj_, fc1_, fc2_;
};

}  // namespace ebb
