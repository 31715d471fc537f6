#include "model/dit.h"

#include <fmt/format.h>

namespace ebb {

namespace {

enum FinalChunk : int64_t { kShift, kScale, kChunks };

}  // namespace

Dit::Dit(const DitConfig& config, int64_t batch, Params& params)
    : config_(config),
      B_(batch),
      T_(config_.tokens()),
      D_(config_.width),
      type_(params.activation()),
      params_(&params),
      rows_(params.peers(), batch),
      patch_embed_(params, "x_embedder.proj"),
      t_mlp0_(params, "t_embedder.mlp.0"),
      t_mlp2_(params, "t_embedder.mlp.2"),
      final_modulation_(params, "final_layer.adaLN_modulation.1"),
      final_linear_(params, "final_layer.linear") {
  for (int64_t i = 0; i < config_.depth(); ++i) blocks_.emplace_back(config_, i, B_, params);
}

Buf Dit::patches(Builder& b, Buf image, int64_t samples) const {
  const DitConfig& c = config_;
  const Buf made = b.buffer("patches", {samples * T_, c.channels * c.patch * c.patch});
  b.emit("patches", Patchify{samples, c.channels, c.image_size, c.patch}, {image}, {made});
  return made;
}

Dit::Embedded Dit::embed(Builder& b, const Input& in) const {
  const auto scope = b.scope("embed");
  const int64_t S = rows_.samples();
  const Buf x = b.lasting("tokens", {S * T_, D_}, type_);
  patch_embed_.forward(b, "tokens", patches(b, rows_.own(in.image), S), x);
  b.emit("positions", AddPositions{S, T_, D_, type_}, {params_->weight(kPositionTable)}, {}, {x});
  const Buf silu_c = b.lasting("silu_c", {B_, D_});
  b.emit("silu_c", Silu{B_ * D_}, {condition(b, in).c}, {silu_c});
  return {x, silu_c};
}

void Dit::embed_backward(Builder& b, const Input& in, Buf dx, Buf dsilu_c) const {
  const auto scope = b.scope("embed");
  const Buf all_dx = rows_.gathered(b, "d.tokens", dx);
  patch_embed_.backward_params_only(b, "d.patches", all_dx, patches(b, in.image, B_));
  condition_backward(b, in, condition(b, in), dsilu_c);
}

Dit::Condition Dit::condition(Builder& b, const Input& in) const {
  Condition s;
  s.features = b.buffer("time.features", {B_, kTimeFeatures});
  b.emit("time.features", TimeEmbed{B_, config_.objective}, {in.t}, {s.features});
  s.t_hidden = t_mlp0_.forward(b, "time.hidden", s.features);
  s.t_act = silu(b, "time.act", s.t_hidden);
  s.c = t_mlp2_.forward(b, "time", s.t_act);
  if (config_.classes > 0) {
    const Buf label = b.buffer("label", {B_, D_});
    b.emit("label", LabelEmbed{B_, D_, config_.classes + 1}, {in.y, params_->weight(kLabelTable)},
           {label});
    s.c = add(b, "condition", s.c, label);
  }
  return s;
}

void Dit::condition_backward(Builder& b, const Input& in, const Condition& s, Buf dsilu_c) const {
  const Buf dc = silu_backward(b, "d.condition", dsilu_c, s.c);
  if (config_.classes > 0) {
    const Buf dtable = params_->gradient(b, kLabelTable);
    const int64_t rows = config_.classes + 1, slots = params_->storage().label_rows;
    const OpParams op = slots > 0 ? OpParams(LabelRowsBackward{B_, D_, slots})
                                  : OpParams(LabelEmbedBackward{B_, D_, rows});
    b.emit("d.label", op, {dc, in.y}, {}, {dtable});
    params_->complete(kLabelTable);
  }
  const Buf dact = t_mlp2_.backward(b, "d.time.act", dc, s.t_act);
  const Buf dhidden = silu_backward(b, "d.time.hidden", dact, s.t_hidden);
  t_mlp0_.backward_params_only(b, "d.time.0", dhidden, s.features);
}

Buf Dit::block_output(Builder& b, int64_t i) const {
  const auto scope = b.scope(fmt::format("block{}", i));
  return b.lasting("out", {rows_.samples() * T_, D_}, type_);
}

Dit::Final Dit::finish(Builder& b, Buf output, Buf x, Buf silu_c) const {
  const DitConfig& c = config_;
  const auto scope = b.scope("final");
  Final f{x, silu_c, final_modulation_.forward(b, "mod", silu_c),
          b.buffer("in", {B_ * T_, D_}, Purpose::activation, type_),
          b.buffer("stats", {rows_.samples() * T_, 2})};
  b.emit("in", AdaLN{rows_.samples(), T_, D_, kChunks, kShift, kScale, type_},
         {x, rows_.own(f.mod)}, {rows_.own(f.m), f.stats});
  rows_.gather("in", f.m);
  const Buf tokens = final_linear_.forward(b, "tokens", f.m);  // (B*T, p*p*C_out)
  b.emit("output", Unpatchify{B_, c.out_channels(), c.image_size, c.patch}, {tokens}, {output});
  return f;
}

Dit::Gradients Dit::finish_backward(Builder& b, const Final& f, Buf doutput) const {
  const DitConfig& c = config_;
  const auto scope = b.scope("final");
  const Buf dtokens = b.buffer("d.tokens", {B_ * T_, c.patch * c.patch * c.out_channels()});
  b.emit("d.output", UnpatchifyBackward{B_, c.out_channels(), c.image_size, c.patch}, {doutput},
         {dtokens});
  const Buf dm = final_linear_.backward(b, "d.in", dtokens, f.m);
  const Buf dmod = b.buffer("d.mod", {B_, kChunks * D_});
  const int64_t S = rows_.samples();
  const Gradients g{b.lasting("d.x", {S * T_, D_}, type_), b.lasting("d.silu_c", {B_, D_})};
  b.emit("d.norm", AdaLNBackward{S, T_, D_, kChunks, kShift, kScale, false, type_},
         {rows_.own(dm), f.x, f.stats, rows_.own(f.mod)}, {rows_.own(dmod), g.dx});
  rows_.gather("d.mod", dmod);
  final_modulation_.backward(b, "d.silu_c", dmod, f.silu_c, g.dsilu_c);
  return g;
}

Dit::Embedded Dit::boundary(Builder& b) const {
  const auto scope = b.scope("stage");
  return {b.buffer("x", {rows_.samples() * T_, D_}, Purpose::exchange, type_),
          b.buffer("silu_c", {B_, D_}, Purpose::exchange)};
}

Dit::Gradients Dit::boundary_gradients(Builder& b) const {
  const auto scope = b.scope("stage");
  return {b.buffer("d.x", {rows_.samples() * T_, D_}, Purpose::exchange, type_),
          b.buffer("d.silu_c", {B_, D_}, Purpose::exchange)};
}

Buf Dit::forward(Builder& b, const Input& in, const Bring& bring) const {
  b.mark();
  bring(kEmbedding);
  Embedded at = embed(b, in);
  for (int64_t i = 0; i < depth(); ++i) {
    b.mark();
    bring(block_layer(i));
    const Buf out = block_output(b, i);
    blocks_[i].forward(b, out, at.x, at.silu_c, {});
    at.x = out;
  }
  b.mark();
  bring(kFinalLayer);
  const DitConfig& c = config_;
  const Buf output = b.buffer("final.output", {B_, c.out_channels(), c.image_size, c.image_size});
  finish(b, output, at.x, at.silu_c);
  return output;
}

}  // namespace ebb
