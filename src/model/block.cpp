#include "model/block.h"

#include <fmt/format.h>

namespace ebb {

namespace {

// The six chunks of a block's modulation.
enum Chunk : int64_t { kShift1, kScale1, kGate1, kShift2, kScale2, kGate2, kChunks };

}  // namespace

Block::Block(const DitConfig& config, int64_t index, int64_t batch, Params& params)
    : index_(index),
      B_(batch),
      T_(config.tokens()),
      D_(config.width),
      H_(config.blocks[index].heads),
      d_(config.head_width),
      qk_norm_(config.qk_norm),
      name_(fmt::format("blocks.{}.", index)),
      params_(&params),
      modulation_(params, name_ + "adaLN_modulation.1"),
      qkv_(params, name_ + "attn.qkv"),
      proj_(params, name_ + "attn.proj"),
      fc1_(params, name_ + "mlp.fc1"),
      fc2_(params, name_ + "mlp.fc2") {}

BlockSaved Block::forward(Builder& b, Buf x, Buf silu_c) const {
  const auto scope = b.scope(fmt::format("block{}", index_));
  const Shape rows = {B_ * T_, D_};
  const Shape stats = {B_ * T_, 2};
  BlockSaved s;
  s.x = x;
  s.silu_c = silu_c;
  s.mod = modulation_.forward(b, "mod", silu_c);

  s.m1 = b.buffer("attn.in", rows);
  s.stats1 = b.buffer("attn.stats", stats);
  b.emit("attn.in", AdaLN{B_, T_, D_, kChunks, kShift1, kScale1}, {x, s.mod}, {s.m1, s.stats1});
  s.qkv = qkv_.forward(b, "attn.qkv", s.m1);
  s.o = attention(b, s);
  s.proj = proj_.forward(b, "attn.proj", s.o);
  s.x1 = b.buffer("attn.out", rows);
  b.emit("attn.out", AddGated{B_, T_, D_, kChunks, kGate1}, {x, s.proj, s.mod}, {s.x1});

  s.m2 = b.buffer("mlp.in", rows);
  s.stats2 = b.buffer("mlp.stats", stats);
  b.emit("mlp.in", AdaLN{B_, T_, D_, kChunks, kShift2, kScale2}, {s.x1, s.mod}, {s.m2, s.stats2});
  s.u = fc1_.forward(b, "mlp.u", s.m2);
  s.g = gelu(b, "mlp.gelu", s.u);
  s.y = fc2_.forward(b, "mlp.y", s.g);
  s.out = b.buffer("out", rows);
  b.emit("out", AddGated{B_, T_, D_, kChunks, kGate2}, {s.x1, s.y, s.mod}, {s.out});
  return s;
}

Block::Gradients Block::backward(Builder& b, const BlockSaved& s, Buf dout, Buf dsilu_c) const {
  const auto scope = b.scope(fmt::format("block{}", index_));
  const Shape rows = {B_ * T_, D_};
  const Buf dmod = b.buffer("d.mod", {B_, kChunks * D_});

  const Buf dy = b.buffer("d.mlp.y", rows);
  b.emit("d.out", AddGatedBackward{B_, T_, D_, kChunks, kGate2}, {dout, s.y, s.mod}, {dy, dmod});
  fc2_.backward_params(b, "d.mlp.fc2", dy, s.g);
  const Buf dg = fc2_.backward_input(b, "d.mlp.gelu", dy);
  const Buf du = gelu_backward(b, "d.mlp.u", dg, s.u);
  fc1_.backward_params(b, "d.mlp.fc1", du, s.m2);
  const Buf dm2 = fc1_.backward_input(b, "d.mlp.in", du);
  const Buf dx1 = b.buffer("d.attn.out", rows);
  b.emit("d.mlp.norm", AdaLNBackward{B_, T_, D_, kChunks, kShift2, kScale2, true},
         {dm2, s.x1, s.stats2, s.mod, dout}, {dx1, dmod});

  const Buf dproj = b.buffer("d.attn.proj", rows);
  b.emit("d.attn.gate", AddGatedBackward{B_, T_, D_, kChunks, kGate1}, {dx1, s.proj, s.mod},
         {dproj, dmod});
  proj_.backward_params(b, "d.attn.proj", dproj, s.o);
  const Buf d_o = proj_.backward_input(b, "d.attn.o", dproj);
  const Buf dqkv = attention_backward(b, s, d_o);
  qkv_.backward_params(b, "d.attn.qkv", dqkv, s.m1);
  const Buf dm1 = qkv_.backward_input(b, "d.attn.in", dqkv);
  const Buf dx = b.buffer("d.x", rows);
  b.emit("d.attn.norm", AdaLNBackward{B_, T_, D_, kChunks, kShift1, kScale1, true},
         {dm1, s.x, s.stats1, s.mod, dx1}, {dx, dmod});

  modulation_.backward_params(b, "d.modulation", dmod, s.silu_c);
  const Buf dpart = modulation_.backward_input(b, "d.silu_c.part", dmod);
  return {dx, add(b, "d.silu_c", dsilu_c, dpart)};
}

// qkv -> o. With qk-norm, q and k pass through their norms first.
Buf Block::attention(Builder& b, BlockSaved& s) const {
  s.qkv_normed = s.qkv;
  if (qk_norm_ != QkNormKind::none) {
    std::vector<Buf> reads = {s.qkv, params_->weight(name_ + "attn.q_norm.weight"),
                              params_->weight(name_ + "attn.k_norm.weight")};
    if (qk_norm_ == QkNormKind::layer) {
      reads.push_back(params_->weight(name_ + "attn.q_norm.bias"));
      reads.push_back(params_->weight(name_ + "attn.k_norm.bias"));
    }
    s.qkv_normed = b.buffer("attn.qkv_normed", b.shape(s.qkv));
    s.qk_stats = b.buffer("attn.qk_stats", {B_ * T_, 2 * H_, 2});
    b.emit("attn.qk_norm", QkNorm{B_, T_, H_, d_, qk_norm_}, reads, {s.qkv_normed, s.qk_stats});
  }
  const Buf o = b.buffer("attn.o", {B_ * T_, H_ * d_});
  s.lse = b.buffer("attn.lse", {B_, H_, T_});
  b.emit("attn.o", Attention{B_, T_, H_, d_}, {s.qkv_normed}, {o, s.lse});
  return o;
}

Buf Block::attention_backward(Builder& b, const BlockSaved& s, Buf d_o) const {
  const Buf dnormed = b.buffer("d.attn.qkv", b.shape(s.qkv));
  b.emit("d.attn.attention", AttentionBackward{B_, T_, H_, d_}, {d_o, s.qkv_normed, s.o, s.lse},
         {dnormed});
  if (qk_norm_ == QkNormKind::none) return dnormed;
  std::vector<Buf> updates = {params_->gradient(b, name_ + "attn.q_norm.weight"),
                              params_->gradient(b, name_ + "attn.k_norm.weight")};
  if (qk_norm_ == QkNormKind::layer) {
    updates.push_back(params_->gradient(b, name_ + "attn.q_norm.bias"));
    updates.push_back(params_->gradient(b, name_ + "attn.k_norm.bias"));
  }
  const Buf dqkv = b.buffer("d.attn.qkv_raw", b.shape(s.qkv));
  b.emit("d.attn.qk_norm", QkNormBackward{B_, T_, H_, d_, qk_norm_},
         {dnormed, s.qkv, s.qk_stats, params_->weight(name_ + "attn.q_norm.weight"),
          params_->weight(name_ + "attn.k_norm.weight")},
         {dqkv}, updates);
  return dqkv;
}

}  // namespace ebb
