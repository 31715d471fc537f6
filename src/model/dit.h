// The whole network: embedders, blocks, final layer.
#pragma once

#include <vector>

#include "model/block.h"

namespace ebb {

// All that the backward pass of the network may read.
struct DitSaved {
  Buf patches;                    // (B*T, C*p*p)
  Buf features, t_hidden, t_act;  // (B, 256), (B, D), (B, D)
  Buf y;                          // (B) labels, K meaning none
  Buf c, silu_c;                  // (B, D)
  std::vector<BlockSaved> blocks;
  Buf x;              // (B*T, D)  the last block's output
  Buf mod, m, stats;  // (B, 2D), (B*T, D), (B*T, 2)
  Buf output;         // (B, C_out, S, S)
};

class Dit {
 public:
  Dit(DitConfig config, int64_t batch, Params& params);

  // image (B, C, S, S), t (B), y (B) labels (unused without classes).
  DitSaved forward(Builder& b, Buf image, Buf t, Buf y) const;
  void backward(Builder& b, const DitSaved& s, Buf doutput) const;

 private:
  Buf condition(Builder& b, DitSaved& s, Buf t, Buf y) const;
  void condition_backward(Builder& b, const DitSaved& s, Buf dsilu_c) const;

  DitConfig config_;
  int64_t B_, T_, D_;
  Params* params_;
  LinearLayer patch_embed_, t_mlp0_, t_mlp2_, final_modulation_, final_linear_;
  std::vector<Block> blocks_;
};

}  // namespace ebb
