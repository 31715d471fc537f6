// What is trained: the shape of a Diffusion Transformer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ebb {

// What is left as it is comes from the named size, then from the data, then from DiT-S/2 on latents
// of ImageNet.
struct Model {
  // Heads and MLP width of one block.
  struct Block {
    int64_t heads, mlp;
  };

  std::string name = {};  // "DiT-{S,B,L,XL}/{2,4,8}"; single sizes win over it
  int64_t width = 0, depth = 0, heads = 0, patch = 0;
  int64_t image_size = 0, channels = 0, classes = -1;  // classes 0: labels are not used
  std::string objective = {};                          // "ddpm" or "flow"
  bool learn_sigma = true;                             // of ddpm
  std::string qk_norm = "none";                        // "none", "layer" or "rms"
  // Each block's own, as pruning leaves them; none: all have `heads` and an MLP of 4 x width. A
  // head is width / heads wide in every block. Of a block one of the two may be 0.
  std::vector<Block> blocks = {};
  // The share of the linear layers' weights that there are, drawn by lots when a run begins; the
  // others are zero and take no memory. Pruning leaves such models (`ebb prune --weights`).
  double density = 1;
};

}  // namespace ebb
