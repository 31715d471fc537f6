#include "model/layers.h"

#include <algorithm>

#include "base/error.h"

namespace ebb {

Params::Params(Builder& b, const std::vector<ParamSpec>& specs, const Storage& storage,
               const std::string& prefix, const LiesHere& lies_here)
    : storage_(storage), prefix_(prefix) {
  for (const ParamSpec& spec : specs) {
    Buf weight, mask;
    if (!lies_here || lies_here(spec)) {
      weight = b.declare(weight_buffer(spec));
      if (spec.sparse()) mask = b.declare(mask_buffer(spec));
    }
    entries_.emplace(spec.name, Entry{spec, weight, {}, mask});
    order_.push_back(spec.name);
  }
}

// The fixed position table has no average of its own.
Buffer Params::weight_buffer(const ParamSpec& spec) const {
  const bool averaged = !prefix_.empty() && spec.trained();
  return {(averaged ? prefix_ : "") + spec.name,
          spec.layer,
          averaged ? Purpose::ema : Purpose::weight,
          averaged ? storage_.ema_of(spec) : storage_.weight_of(spec),
          spec.stored(),
          true};
}

// One for the weight and all that is kept of it.
Buffer Params::mask_buffer(const ParamSpec& spec) const {
  return {kMask + spec.name, spec.layer, Purpose::weight, DType::u8, mask_shape(spec), true};
}

namespace {

// What stands in for it where it does not lie.
Buffer brought(Buffer buffer) {
  buffer.name += ".brought";
  buffer.purpose = Purpose::exchange;
  buffer.resident = false;
  return buffer;
}

}  // namespace

void Params::bring(Builder& b, Messages& messages, const std::string& name,
                   const Messages::Ring& ring) {
  Entry& e = entries_.at(name);
  const auto bring = [&](Buf& held, const Buffer& buffer) {
    if (!ring.has) held = b.declare_numbered(brought(buffer));
    messages.hand_on(name, held, kWeights, ring);
  };
  bring(e.weight, weight_buffer(e.spec));
  if (e.spec.sparse()) bring(e.mask, mask_buffer(e.spec));
}

void Params::declare_part(Builder& b, const ParamSpec& part) {
  entries_.at(part.name).part = b.declare(weight_buffer(part));
}

void Params::bring_parts(Builder& b, Messages& messages, const std::vector<Part>& parts) {
  Entry& e = entries_.at(parts[0].spec.name);
  e.weight = b.declare_numbered(brought(weight_buffer(e.spec)));
  const int64_t rows = e.spec.rows(), columns = e.spec.columns();
  for (const Part& part : parts) {
    const ParamSpec& spec = part.spec;
    const Buf held = part.ring.has ? e.part : b.declare_numbered(brought(weight_buffer(spec)));
    messages.hand_on(spec.name, held, kWeights, part.ring);
    const auto put = [&](const CopyColumns& op) {
      b.emit("put." + spec.name, op, {held}, {e.weight});
    };
    int64_t own = 0;  // rows, or columns, of the runs before
    for (const Slice::Run& run : spec.slice.runs) {
      const DType type = b.type(held);
      spec.slice.columns ? put({rows, spec.columns(), columns, run.count, own, run.first, type})
                         : put({1, spec.count(), rows * columns, run.count * columns, own * columns,
                                run.first * columns, type});
      own += run.count;
    }
  }
}

const Params::Entry& Params::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  require(found != entries_.end(), "model: no parameter named {}", name);
  return found->second;
}

Buf Params::weight(const std::string& name) const { return entry(name).weight; }

void Params::declare_gradient(Builder& b, const std::string& name) {
  require(!b.in_loop(), "model: the gradient of {} begins inside a loop", name);
  Entry& e = entries_.at(name);
  e.gradient = b.declare_numbered({"grad." + name, e.spec.layer, purpose_(e.spec),
                                   storage_.gradient_of(e.spec), storage_.gradient_shape(e.spec)});
}

Buf Params::gradient(Builder& b, const std::string& name) {
  if (!entry(name).gradient) {
    declare_gradient(b, name);
    const Buf made = entry(name).gradient;
    if (begin_) {
      begin_(entry(name).spec, made);
      return made;
    }
    b.emit("zero." + name, Zero{element_count(b.shape(made)), b.type(made)}, {}, {made});
  }
  return entry(name).gradient;
}

Params::Sum Params::gradient_sum(Builder& b, const std::string& name) {
  if (begin_) return {gradient(b, name), false};
  const bool begins = !entry(name).gradient;
  if (begins) declare_gradient(b, name);
  return {entry(name).gradient, begins};
}

void Params::start_gradients(Builder& b, const std::string& layer) {
  for (const std::string& name : order_) {
    const ParamSpec& spec = entry(name).spec;
    if (spec.trained() && spec.layer == layer) gradient(b, name);
  }
}

void Params::start_all_gradients(Builder& b) {
  for (const std::string& name : order_) {
    if (entry(name).spec.trained()) gradient(b, name);
  }
}

void Params::complete(const std::string& name) {
  if (!release_) return;
  if (!wait_) {
    release_(entry(name).spec, entry(name).gradient);
  } else if (std::find(waiting_.begin(), waiting_.end(), name) == waiting_.end()) {
    waiting_.push_back(name);
  }
}

void Params::complete_waiting() {
  // In the order in which start_gradients() began them: other ranks count on it.
  for (const std::string& name : order_) {
    const bool waits = std::find(waiting_.begin(), waiting_.end(), name) != waiting_.end();
    if (waits) release_(entry(name).spec, entry(name).gradient);
  }
  waiting_.clear();
}

void Params::forget_gradients() {
  for (auto& [name, e] : entries_) e.gradient = {};
}

Linear LinearLayer::sizes(int64_t rows_times_k, int64_t rows_times_n) const {
  const ParamSpec& w = params_->spec(name_ + ".weight");
  const int64_t N = w.rows(), K = w.columns();
  Linear op{rows_times_k > 0 ? rows_times_k / K : rows_times_n / N, K, N};
  op.left = w.left;
  return op;
}

// The last of what an op reads.
void LinearLayer::add_mask(std::vector<Buf>& reads) const {
  if (const Buf mask = params_->mask(name_ + ".weight")) reads.push_back(mask);
}

// Where ranks have columns of the matrix each makes a part of a sum, and the first adds the bias.
Buf LinearLayer::bias(Builder& b, const std::string& label) const {
  const Buf bias = params_->weight(name_ + ".bias");
  const Slice& slice = params_->spec(name_ + ".weight").slice;
  if (!slice.columns || slice.runs[0].first == 0) return bias;
  const Buf none = b.buffer(label + ".no_bias", b.shape(bias));
  b.emit(label + ".no_bias", Zero{element_count(b.shape(none))}, {}, {none});
  return none;
}

void LinearLayer::emit_forward(Builder& b, const std::string& label, Buf x, LinearEnd end,
                               std::vector<Buf> writes) const {
  Linear op = sizes(element_count(b.shape(x)), 0);
  op.end = end;
  op.x = b.type(x);
  op.w = b.type(params_->weight(name_ + ".weight"));
  op.y = b.type(writes[0]);
  std::vector<Buf> reads = {x, params_->weight(name_ + ".weight"), bias(b, label)};
  add_mask(reads);
  b.emit(label, op, std::move(reads), std::move(writes));
}

void LinearLayer::forward(Builder& b, const std::string& label, Buf x, Buf y) const {
  emit_forward(b, label, x, LinearEnd::plain, {y});
}

void LinearLayer::forward_gelu(Builder& b, const std::string& label, Buf x, Buf g) const {
  emit_forward(b, label, x, LinearEnd::gelu, {g});
}

void LinearLayer::forward_gelu(Builder& b, const std::string& label, Buf x, Buf y, Buf g) const {
  emit_forward(b, label, x, LinearEnd::gelu_aside, {y, g});
}

Buf LinearLayer::forward(Builder& b, const std::string& label, Buf x) const {
  const Linear op = sizes(element_count(b.shape(x)), 0);
  const Buf y = b.buffer(label, {op.R, op.N});
  forward(b, label, x, y);
  return y;
}

void LinearLayer::emit_backward(Builder& b, const std::string& label, Buf dy, Buf dx, Buf u) const {
  const Linear sizes = this->sizes(0, element_count(b.shape(dy)));
  const Buf w = params_->weight(name_ + ".weight");
  std::vector<Buf> reads = {dy, w};
  if (u) reads.push_back(u);
  add_mask(reads);
  b.emit(label,
         LinearBackwardInput{sizes.R, sizes.K, sizes.N, static_cast<bool>(u), b.type(dy), b.type(w),
                             b.type(dx), sizes.left},
         std::move(reads), {dx});
  complete();
}

void LinearLayer::backward(Builder& b, const std::string& label, Buf dy, Buf x, Buf dx) const {
  add_gradients(b, label, dy, x);
  emit_backward(b, label, dy, dx, {});
}

Buf LinearLayer::backward(Builder& b, const std::string& label, Buf dy, Buf x) const {
  const Buf dx = b.buffer(label, b.shape(x), Purpose::activation, b.type(x));
  backward(b, label, dy, x, dx);
  return dx;
}

Buf LinearLayer::backward_gelu(Builder& b, const std::string& label, Buf dy, Buf x, Buf u) const {
  add_gradients(b, label, dy, x);
  const Buf du = b.buffer(label, b.shape(u), Purpose::activation, b.type(u));
  emit_backward(b, label, dy, du, u);
  return du;
}

void LinearLayer::backward_params_only(Builder& b, const std::string& label, Buf dy, Buf x) const {
  add_gradients(b, label, dy, x);
  complete();
}

void LinearLayer::add_gradients(Builder& b, const std::string& label, Buf dy, Buf x) const {
  if (!params_->puts_off()) return emit_gradients(b, label, dy, x);
  params_->put_off([layer = *this, &b, label, dy, x, layer_name = b.scope_name()] {
    const auto scope = b.scope(layer_name);
    layer.emit_gradients(b, label, dy, x);
  });
}

void LinearLayer::emit_gradients(Builder& b, const std::string& label, Buf dy, Buf x) const {
  const Linear op = sizes(0, element_count(b.shape(dy)));
  const auto [dw, begins] = params_->gradient_sum(b, name_ + ".weight");
  const Buf db = params_->gradient_sum(b, name_ + ".bias").gradient;
  const std::vector<Buf> into = {dw, db};
  std::vector<Buf> reads = {dy, x};
  add_mask(reads);
  b.emit(label + ".params",
         LinearBackwardParams{op.R, op.K, op.N, begins, b.type(dy), b.type(x), b.type(dw), op.left},
         std::move(reads), begins ? into : std::vector<Buf>{}, begins ? std::vector<Buf>{} : into);
}

void LinearLayer::complete() const {
  params_->complete(name_ + ".weight");
  params_->complete(name_ + ".bias");
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
Buf add(Builder& b, const std::string& label, Buf x, Buf y) {
  return elementwise<Add>(b, label, {x, y});
}

}  // namespace ebb
