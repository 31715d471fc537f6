#include "model/block.h"

#include <fmt/format.h>

namespace ebb {

namespace {

// The chunks of each half's modulation: those of attention come first, then those of the MLP.
enum Chunk : int64_t { kShift, kScale, kGate, kOfHalf };

}  // namespace

Block::Block(const DitConfig& config, int64_t index, int64_t batch, Params& params)
    : index_(index),
      B_(batch),
      T_(config.tokens()),
      D_(config.width),
      H_(config.blocks[index].heads),
      d_(config.head_width),
      mlp_(config.blocks[index].mlp),
      chunks_(config.blocks[index].chunks()),
      of_mlp_(H_ > 0 ? int64_t{kOfHalf} : 0),
      qk_norm_(config.qk_norm),
      type_(params.activation()),
      name_(fmt::format("blocks.{}.", index)),
      params_(&params),
      rows_(params.peers(), batch),
      modulation_(params, name_ + "adaLN_modulation.1"),
      qkv_(params, name_ + "attn.qkv"),
      proj_(params, name_ + "attn.proj"),
      fc1_(params, name_ + "mlp.fc1"),
      fc2_(params, name_ + "mlp.fc2") {}

BlockTensors Block::forward(Builder& b, Buf out, Buf x, Buf silu_c, const KeepSet& keep) const {
  const auto scope = b.scope(fmt::format("block{}", index_));
  BlockTensors t;
  t.x = x;
  t.silu_c = silu_c;
  // Without qk-norm the normed tensor is qkv itself.
  t.keep = qk_norm_ == QkNormKind::none ? keep.with(Slot::normed, keep.has(Slot::qkv)) : keep;
  if (mlp_ > 0) {
    need(b, t, Slot::y);
    b.emit("out", AddGated{rows_.samples(), T_, D_, chunks_, of_mlp_ + kGate, type_},
           {need(b, t, Slot::x1), need(b, t, Slot::y), rows_.own(need(b, t, Slot::mod))}, {out});
  } else {  // what the attention half makes is the block's output
    need(b, t, Slot::proj);
    b.emit("out", AddGated{rows_.samples(), T_, D_, chunks_, kGate, type_},
           {t.x, need(b, t, Slot::proj), rows_.own(need(b, t, Slot::mod))}, {out});
  }
  for (int i = 0; i < kBlockSlots; ++i) {
    if (!t.keep.has(static_cast<Slot>(i))) t.made[i] = t.aside[i] = {};
  }
  return t;
}

Buf Block::need(Builder& b, BlockTensors& t, Slot slot) const {
  if (slot == Slot::x1 && H_ == 0) return t.x;
  const int i = static_cast<int>(slot);
  if (!t.made[i]) make(b, t, slot);
  return t.made[i];
}

// Each tensor of the block, from those before it. Backward makes again what was not kept, with the
// same op on the same shapes: the bits are the same.
void Block::make(Builder& b, BlockTensors& t, Slot slot) const {
  const int index = static_cast<int>(slot);
  const auto get = [&](Slot of) { return need(b, t, of); };
  // What is kept in a loop over micro-batches is there once for each of them.
  const auto buffer = [&](Slot of, const char* label, Shape shape, DType type) {
    return t.keep.has(of) ? b.lasting(label, std::move(shape), type)
                          : b.buffer(label, std::move(shape), Purpose::activation, type);
  };
  const auto main = [&](const char* label, int64_t rows, int64_t width) {
    return t.made[index] =
               buffer(slot, label, {rows, width}, slot == Slot::mod ? DType::f32 : type_);
  };
  const auto aside = [&](const char* label, Shape shape) {
    return t.aside[index] = buffer(slot, label, std::move(shape), DType::f32);
  };
  const int64_t S = rows_.samples(), R = B_ * T_;
  switch (slot) {
    case Slot::mod:  // (B, 6D)  shift, scale, gate of attention; shift, scale, gate of the MLP
      modulation(b, t.silu_c, main("mod", B_, chunks_ * D_));
      return;
    case Slot::m1: {  // (B*T, D)
      const Buf mod = rows_.own(get(Slot::mod));
      const Buf m1 = main("attn.in", R, D_);
      b.emit("attn.in", AdaLN{S, T_, D_, chunks_, kShift, kScale, type_}, {t.x, mod},
             {rows_.own(m1), aside("attn.stats", {S * T_, 2})});
      rows_.gather("attn.in", m1);
      return;
    }
    case Slot::qkv: {  // (B*T, 3 H d)
      const Buf m1 = get(Slot::m1);
      qkv_.forward(b, "attn.qkv", m1, main("attn.qkv", R, 3 * H_ * d_));
      return;
    }
    case Slot::normed: {  // (B*T, 3 H d)  q and k normalised; qkv itself without qk-norm
      const Buf qkv = get(Slot::qkv);
      if (qk_norm_ == QkNormKind::none) {
        t.made[index] = qkv;
        return;
      }
      std::vector<Buf> reads = {qkv, params_->weight(name_ + "attn.q_norm.weight"),
                                params_->weight(name_ + "attn.k_norm.weight")};
      if (qk_norm_ == QkNormKind::layer) {
        reads.push_back(params_->weight(name_ + "attn.q_norm.bias"));
        reads.push_back(params_->weight(name_ + "attn.k_norm.bias"));
      }
      const Buf normed = main("attn.qkv_normed", R, 3 * H_ * d_);
      b.emit("attn.qk_norm", QkNorm{B_, T_, H_, d_, qk_norm_, type_}, reads,
             {normed, aside("attn.qk_stats", {R, 2 * H_, 2})});
      return;
    }
    case Slot::o: {  // (B*T, H d)
      const Buf normed = get(Slot::normed);
      const Buf o = main("attn.o", R, H_ * d_);
      b.emit("attn.o", Attention{B_, T_, H_, d_, type_}, {normed},
             {o, aside("attn.lse", {B_, H_, T_})});
      return;
    }
    case Slot::proj: {  // (S*T, D)
      const Buf o = get(Slot::o);
      sum_of_parts(b, proj_, "attn.proj", o, main("attn.proj", S * T_, D_));
      return;
    }
    case Slot::x1: {  // (S*T, D)  after the attention half
      const Buf proj = get(Slot::proj);
      const Buf mod = rows_.own(get(Slot::mod));
      b.emit("attn.out", AddGated{S, T_, D_, chunks_, kGate, type_}, {t.x, proj, mod},
             {main("attn.out", S * T_, D_)});
      return;
    }
    case Slot::m2: {  // (B*T, D)
      const Buf x1 = get(Slot::x1);
      const Buf mod = rows_.own(get(Slot::mod));
      const Buf m2 = main("mlp.in", R, D_);
      b.emit("mlp.in", AdaLN{S, T_, D_, chunks_, of_mlp_ + kShift, of_mlp_ + kScale, type_},
             {x1, mod}, {rows_.own(m2), aside("mlp.stats", {S * T_, 2})});
      rows_.gather("mlp.in", m2);
      return;
    }
    case Slot::u: {  // (B*T, M)  before GELU
      const Buf m2 = get(Slot::m2);
      fc1_.forward(b, "mlp.u", m2, main("mlp.u", R, mlp_));
      return;
    }
    case Slot::g: {  // (B*T, M)  after GELU
      Buf& u = t.made[static_cast<int>(Slot::u)];
      if (u) {
        b.emit("mlp.gelu", Gelu{R * mlp_, type_}, {u}, {main("mlp.gelu", R, mlp_)});
        return;
      }
      const Buf m2 = get(Slot::m2);
      const bool also_u = t.backward || t.keep.has(Slot::u);
      if (also_u) u = buffer(Slot::u, "mlp.u", {R, mlp_}, type_);
      const Buf g = main("mlp.gelu", R, mlp_);
      also_u ? fc1_.forward_gelu(b, "mlp.gelu", m2, u, g) : fc1_.forward_gelu(b, "mlp.gelu", m2, g);
      return;
    }
    case Slot::y: {  // (S*T, D)
      const Buf g = get(Slot::g);
      sum_of_parts(b, fc2_, "mlp.y", g, main("mlp.y", S * T_, D_));
      return;
    }
  }
}

void Block::backward(Builder& b, Buf dx, Buf dsilu_c, BlockTensors t) const {
  const auto scope = b.scope(fmt::format("block{}", index_));
  t.keep = {};  // what is made from here on outlives nothing
  t.backward = true;
  const Buf last = need(b, t, mlp_ > 0 ? Slot::y : Slot::proj);
  need(b, t, Slot::mod);
  const Buf dmod = b.buffer("d.mod", {B_, chunks_ * D_});
  if (mlp_ > 0) mlp_half_backward(b, dx, dmod, t, last);
  if (H_ > 0) attention_half_backward(b, dx, dmod, t);
  rows_.gather("d.mod", dmod);
  const Buf share = modulation_backward(b, dmod, t.silu_c);
  b.emit("d.silu_c.add", AddTo{B_ * D_}, {share}, {}, {dsilu_c});
}

void Block::modulation(Builder& b, Buf silu_c, Buf mod) const {
  TensorPeers* const peers = params_->peers();
  if (peers == nullptr) return modulation_.forward(b, "mod", silu_c, mod);
  peers->gather_columns("mod", modulation_.forward(b, "mod.own", silu_c), mod);
}

Buf Block::modulation_backward(Builder& b, Buf dmod, Buf silu_c) const {
  TensorPeers* const peers = params_->peers();
  const Buf own = peers != nullptr ? peers->own_columns("d.mod", dmod) : dmod;
  const Buf made = modulation_.backward(b, "d.silu_c", own, silu_c);
  if (peers != nullptr) peers->sum("d.silu_c", made);
  return made;
}

void Block::sum_of_parts(Builder& b, const LinearLayer& layer, const char* label, Buf x,
                         Buf y) const {
  const Buf part = rows_.part_of(b, label, y);
  layer.forward(b, label, x, part);
  rows_.sum(label, part, y);
}

void Block::mlp_half_backward(Builder& b, Buf dx, Buf dmod, BlockTensors& t, Buf y) const {
  const int64_t S = rows_.samples();
  const Buf mod = rows_.own(need(b, t, Slot::mod)), own_dmod = rows_.own(dmod);
  const Buf dy = b.buffer("d.mlp.y", {B_ * T_, D_}, Purpose::activation, type_);
  b.emit("d.out", AddGatedBackward{S, T_, D_, chunks_, of_mlp_ + kGate, type_}, {dx, y, mod},
         {rows_.own(dy), own_dmod});
  rows_.gather("d.mlp.y", dy);
  const Buf g = need(b, t, Slot::g);
  const Buf du = fc2_.backward_gelu(b, "d.mlp.u", dy, g, need(b, t, Slot::u));
  const Buf dm2 =
      rows_.summed(b, "d.mlp.in", fc1_.backward(b, "d.mlp.in", du, need(b, t, Slot::m2)));
  b.emit("d.mlp.norm",
         AdaLNBackward{S, T_, D_, chunks_, of_mlp_ + kShift, of_mlp_ + kScale, true, type_},
         {dm2, need(b, t, Slot::x1), t.aside[static_cast<int>(Slot::m2)], mod}, {own_dmod}, {dx});
}

void Block::attention_half_backward(Builder& b, Buf dx, Buf dmod, BlockTensors& t) const {
  const int64_t S = rows_.samples();
  const Buf mod = rows_.own(need(b, t, Slot::mod)), own_dmod = rows_.own(dmod);
  const Buf dproj = b.buffer("d.attn.proj", {B_ * T_, D_}, Purpose::activation, type_);
  b.emit("d.attn.out", AddGatedBackward{S, T_, D_, chunks_, kGate, type_},
         {dx, need(b, t, Slot::proj), mod}, {rows_.own(dproj), own_dmod});
  rows_.gather("d.attn.proj", dproj);
  const Buf d_o = proj_.backward(b, "d.attn.o", dproj, need(b, t, Slot::o));
  const Buf dqkv = attention_backward(b, t, d_o);
  const Buf dm1 =
      rows_.summed(b, "d.attn.in", qkv_.backward(b, "d.attn.in", dqkv, need(b, t, Slot::m1)));
  b.emit("d.attn.norm", AdaLNBackward{S, T_, D_, chunks_, kShift, kScale, true, type_},
         {dm1, t.x, t.aside[static_cast<int>(Slot::m1)], mod}, {own_dmod}, {dx});
}

Buf Block::attention_backward(Builder& b, BlockTensors& t, Buf d_o) const {
  const Buf normed = need(b, t, Slot::normed);
  const Buf dnormed = b.buffer("d.attn.qkv", b.shape(normed), Purpose::activation, type_);
  b.emit("d.attn.attention", AttentionBackward{B_, T_, H_, d_, type_},
         {d_o, normed, need(b, t, Slot::o), t.aside[static_cast<int>(Slot::o)]}, {dnormed});
  if (qk_norm_ == QkNormKind::none) return dnormed;
  std::vector<std::string> names = {"attn.q_norm.weight", "attn.k_norm.weight"};
  if (qk_norm_ == QkNormKind::layer) {
    names.insert(names.end(), {"attn.q_norm.bias", "attn.k_norm.bias"});
  }
  std::vector<Buf> updates;
  for (const std::string& name : names) updates.push_back(params_->gradient(b, name_ + name));
  const Buf qkv = need(b, t, Slot::qkv);
  const Buf dqkv = b.buffer("d.attn.qkv_raw", b.shape(qkv), Purpose::activation, type_);
  b.emit("d.attn.qk_norm", QkNormBackward{B_, T_, H_, d_, qk_norm_, type_},
         {dnormed, qkv, t.aside[static_cast<int>(Slot::normed)],
          params_->weight(name_ + "attn.q_norm.weight"),
          params_->weight(name_ + "attn.k_norm.weight")},
         {dqkv}, updates);
  for (const std::string& name : names) params_->complete(name_ + name);
  return dqkv;
}

}  // namespace ebb
