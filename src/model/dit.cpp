#include "model/dit.h"

namespace ebb {

namespace {

enum FinalChunk : int64_t { kShift, kScale, kChunks };

constexpr const char* kLabelTable = "y_embedder.embedding_table.weight";

}  // namespace

Dit::Dit(DitConfig config, int64_t batch, Params& params)
    : config_(std::move(config)),
      B_(batch),
      T_(config_.tokens()),
      D_(config_.width),
      params_(&params),
      patch_embed_(params, "x_embedder.proj"),
      t_mlp0_(params, "t_embedder.mlp.0"),
      t_mlp2_(params, "t_embedder.mlp.2"),
      final_modulation_(params, "final_layer.adaLN_modulation.1"),
      final_linear_(params, "final_layer.linear") {
  for (int64_t i = 0; i < config_.depth(); ++i) blocks_.emplace_back(config_, i, B_, params);
}

DitSaved Dit::forward(Builder& b, Buf image, Buf t, Buf y) const {
  const DitConfig& c = config_;
  DitSaved s;
  Buf x;
  {
    const auto scope = b.scope("embed");
    s.patches = b.buffer("patches", {B_ * T_, c.channels * c.patch * c.patch});
    b.emit("patches", Patchify{B_, c.channels, c.image_size, c.patch}, {image}, {s.patches});
    x = patch_embed_.forward(b, "tokens", s.patches);  // (B*T, D)
    b.emit("positions", AddPositions{B_, T_, D_}, {params_->weight("pos_embed")}, {}, {x});
    s.silu_c = condition(b, s, t, y);  // (B, D)
  }
  for (const Block& block : blocks_) {
    s.blocks.push_back(block.forward(b, x, s.silu_c));
    x = s.blocks.back().out;
  }
  const auto scope = b.scope("final");
  s.x = x;
  s.mod = final_modulation_.forward(b, "mod", s.silu_c);
  s.m = b.buffer("in", {B_ * T_, D_});
  s.stats = b.buffer("stats", {B_ * T_, 2});
  b.emit("in", AdaLN{B_, T_, D_, kChunks, kShift, kScale}, {x, s.mod}, {s.m, s.stats});
  const Buf tokens = final_linear_.forward(b, "tokens", s.m);  // (B*T, p*p*C_out)
  s.output = b.buffer("output", {B_, c.out_channels(), c.image_size, c.image_size});
  b.emit("output", Unpatchify{B_, c.out_channels(), c.image_size, c.patch}, {tokens}, {s.output});
  return s;
}

void Dit::backward(Builder& b, const DitSaved& s, Buf doutput) const {
  const DitConfig& c = config_;
  Buf dx;
  Buf dsilu_c;
  {
    const auto scope = b.scope("final");
    const Buf dtokens = b.buffer("d.tokens", {B_ * T_, c.patch * c.patch * c.out_channels()});
    b.emit("d.output", UnpatchifyBackward{B_, c.out_channels(), c.image_size, c.patch}, {doutput},
           {dtokens});
    final_linear_.backward_params(b, "d.linear", dtokens, s.m);
    const Buf dm = final_linear_.backward_input(b, "d.in", dtokens);
    const Buf dmod = b.buffer("d.mod", {B_, kChunks * D_});
    dx = b.buffer("d.x", {B_ * T_, D_});
    b.emit("d.norm", AdaLNBackward{B_, T_, D_, kChunks, kShift, kScale, false},
           {dm, s.x, s.stats, s.mod}, {dx, dmod});
    final_modulation_.backward_params(b, "d.modulation", dmod, s.silu_c);
    dsilu_c = final_modulation_.backward_input(b, "d.silu_c", dmod);
  }
  for (int64_t i = c.depth() - 1; i >= 0; --i) {
    const Block::Gradients g = blocks_[i].backward(b, s.blocks[i], dx, dsilu_c);
    dx = g.dx;
    dsilu_c = g.dsilu_c;
  }
  const auto scope = b.scope("embed");
  patch_embed_.backward_params(b, "d.patches", dx, s.patches);
  condition_backward(b, s, dsilu_c);
}

// SiLU(c), c = timestep embedding + label embedding.
Buf Dit::condition(Builder& b, DitSaved& s, Buf t, Buf y) const {
  s.features = b.buffer("time.features", {B_, kTimeFeatures});
  b.emit("time.features", TimeEmbed{B_, config_.objective}, {t}, {s.features});
  s.t_hidden = t_mlp0_.forward(b, "time.hidden", s.features);
  s.t_act = silu(b, "time.act", s.t_hidden);
  s.c = t_mlp2_.forward(b, "time", s.t_act);
  s.y = y;
  if (config_.classes > 0) {
    const Buf label = b.buffer("label", {B_, D_});
    b.emit("label", LabelEmbed{B_, D_, config_.classes + 1}, {y, params_->weight(kLabelTable)},
           {label});
    s.c = add(b, "condition", s.c, label);
  }
  return silu(b, "silu_c", s.c);
}

void Dit::condition_backward(Builder& b, const DitSaved& s, Buf dsilu_c) const {
  const Buf dc = silu_backward(b, "d.condition", dsilu_c, s.c);
  if (config_.classes > 0) {
    const Buf dtable = params_->gradient(b, kLabelTable);
    b.emit("d.label", LabelEmbedBackward{B_, D_, config_.classes + 1}, {dc, s.y}, {}, {dtable});
  }
  t_mlp2_.backward_params(b, "d.time.2", dc, s.t_act);
  const Buf dact = t_mlp2_.backward_input(b, "d.time.act", dc);
  const Buf dhidden = silu_backward(b, "d.time.hidden", dact, s.t_hidden);
  t_mlp0_.backward_params(b, "d.time.0", dhidden, s.features);
}

}  // namespace ebb
