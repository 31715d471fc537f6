#include "model/layers.h"

#include "base/error.h"

namespace ebb {

Params::Params(Builder& b, const std::vector<ParamSpec>& specs, const std::string& prefix) {
  for (const ParamSpec& spec : specs) {
    // The fixed position table has no average of its own.
    const bool averaged = !prefix.empty() && spec.trained();
    const Buf weight =
        b.declare({(averaged ? prefix : "") + spec.name, spec.layer,
                   averaged ? Purpose::ema : Purpose::weight, DType::f32, spec.shape, true});
    entries_.emplace(spec.name, Entry{spec, weight, {}});
  }
}

Buf Params::weight(const std::string& name) const {
  const auto found = entries_.find(name);
  require(found != entries_.end(), "model: no parameter named {}", name);
  return found->second.weight;
}

Buf Params::gradient(Builder& b, const std::string& name) {
  Entry& entry = entries_.at(name);
  if (!entry.gradient) {
    entry.gradient = b.declare(
        {"grad." + name, entry.spec.layer, Purpose::gradient, DType::f32, entry.spec.shape, false});
    b.emit("zero." + name, Zero{element_count(entry.spec.shape)}, {}, {entry.gradient});
  }
  return entry.gradient;
}

Buf LinearLayer::forward(Builder& b, const std::string& label, Buf x) const {
  const Buf w = params_->weight(name_ + ".weight");
  const int64_t N = b.shape(w)[0];
  const int64_t K = element_count(b.shape(w)) / N;
  const int64_t R = element_count(b.shape(x)) / K;
  const Buf y = b.buffer(label, {R, N});
  b.emit(label, Linear{R, K, N}, {x, w, params_->weight(name_ + ".bias")}, {y});
  return y;
}

Buf LinearLayer::backward_input(Builder& b, const std::string& label, Buf dy) const {
  const Buf w = params_->weight(name_ + ".weight");
  const int64_t N = b.shape(w)[0];
  const int64_t K = element_count(b.shape(w)) / N;
  const int64_t R = element_count(b.shape(dy)) / N;
  const Buf dx = b.buffer(label, {R, K});
  b.emit(label, LinearBackwardInput{R, K, N}, {dy, w}, {dx});
  return dx;
}

void LinearLayer::backward_params(Builder& b, const std::string& label, Buf dy, Buf x) const {
  const Shape& w = b.shape(params_->weight(name_ + ".weight"));
  const int64_t N = w[0];
  const int64_t K = element_count(w) / N;
  const int64_t R = element_count(b.shape(dy)) / N;
  const Buf dw = params_->gradient(b, name_ + ".weight");
  b.emit(label + ".weight", LinearBackwardWeight{R, K, N}, {dy, x}, {}, {dw});
  const Buf db = params_->gradient(b, name_ + ".bias");
  b.emit(label + ".bias", LinearBackwardBias{R, N}, {dy}, {}, {db});
}

namespace {

template <typename OpType>
Buf elementwise(Builder& b, const std::string& label, std::vector<Buf> reads) {
  const Buf y = b.buffer(label, b.shape(reads[0]));
  b.emit(label, OpType{element_count(b.shape(y))}, std::move(reads), {y});
  return y;
}

}  // namespace

Buf silu(Builder& b, const std::string& label, Buf x) { return elementwise<Silu>(b, label, {x}); }
Buf silu_backward(Builder& b, const std::string& label, Buf dy, Buf x) {
  return elementwise<SiluBackward>(b, label, {dy, x});
}
Buf gelu(Builder& b, const std::string& label, Buf x) { return elementwise<Gelu>(b, label, {x}); }
Buf gelu_backward(Builder& b, const std::string& label, Buf dy, Buf x) {
  return elementwise<GeluBackward>(b, label, {dy, x});
}
Buf add(Builder& b, const std::string& label, Buf x, Buf y) {
  return elementwise<Add>(b, label, {x, y});
}

}  // namespace ebb
