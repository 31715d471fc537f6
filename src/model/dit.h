// The whole network: embedders, blocks, final layer. Each part emits its forward and its backward.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/block.h"

namespace ebb {

class Dit {
 public:
  // batch: samples that every emitted op works on.
  Dit(const DitConfig& config, int64_t batch, Params& params);

  // image (B, C, S, S), t (B), y (B) labels (unused without classes).
  struct Input {
    Buf image, t, y;
  };
  struct Embedded {
    Buf x;       // (S*T, D)  the first block's input, of the samples whose rows are here
    Buf silu_c;  // (B, D)    SiLU of the condition
  };
  Embedded embed(Builder& b, const Input& in) const;
  // Makes again what the embedders computed: it is little.
  void embed_backward(Builder& b, const Input& in, Buf dx, Buf dsilu_c) const;

  int64_t depth() const { return static_cast<int64_t>(blocks_.size()); }
  const Block& block(int64_t i) const { return blocks_[i]; }
  Buf block_output(Builder& b, int64_t i) const;  // (S*T, D)

  struct Final {
    Buf x, silu_c;
    Buf mod, m, stats;  // (B, 2D), (B*T, D), (S*T, 2)
  };
  // x (S*T, D), the last block's output -> output (B, C_out, S, S)
  Final finish(Builder& b, Buf output, Buf x, Buf silu_c) const;
  struct Gradients {
    Buf dx, dsilu_c;  // (S*T, D), (B, D)
  };
  Gradients finish_backward(Builder& b, const Final& f, Buf doutput) const;

  // Where another stage of a pipeline has what is before or behind: what comes from there.
  Embedded boundary(Builder& b) const;
  Gradients boundary_gradients(Builder& b) const;

  // All of it, for those that only want the output. `bring`: emits what brings a layer's weights.
  using Bring = std::function<void(const std::string& layer)>;
  Buf forward(Builder& b, const Input& in, const Bring& bring) const;

 private:
  struct Condition {
    Buf features, t_hidden, t_act;  // (B, 256), (B, D), (B, D)
    Buf c;                          // (B, D)  timestep embedding + label embedding
  };
  Condition condition(Builder& b, const Input& in) const;
  void condition_backward(Builder& b, const Input& in, const Condition& s, Buf dsilu_c) const;
  Buf patches(Builder& b, Buf image, int64_t samples) const;  // (samples*T, C*p*p)

  DitConfig config_;
  int64_t B_, T_, D_;
  DType type_;  // of what has a row for each token
  Params* params_;
  TokenRows rows_;  // between the products; these take and make those of all samples
  LinearLayer patch_embed_, t_mlp0_, t_mlp2_, final_modulation_, final_linear_;
  std::vector<Block> blocks_;
};

}  // namespace ebb
