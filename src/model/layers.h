// The pieces that blocks are made of. Each emits; none runs anything.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/messages.h"
#include "model/storage.h"
#include "model/tensor_peers.h"
#include "program/builder.h"

namespace ebb {

// The parameters of a model inside one program: weights by the reference's names, and gradients
// that come into being when the first op is about to add to them.
class Params {
 public:
  // Declares resident weights. `prefix` picks a set: "" the weights, "ema." their average.
  // Those that lie elsewhere have no weight here until one stands in for it.
  using LiesHere = std::function<bool(const ParamSpec& spec)>;
  Params(Builder& b, const std::vector<ParamSpec>& specs, const Storage& storage = {},
         const std::string& prefix = "", const LiesHere& lies_here = {});
  // Brings such a weight, for the ops that follow, and hands it on. To be called by all of the
  // ring.
  void bring(Builder& b, Messages& messages, const std::string& name, const Messages::Ring& ring);
  // The same where ranks have parts of the weight: all of them are brought, and put together. This
  // rank's own is declared once, if it is here.
  struct Part {
    ParamSpec spec;
    Messages::Ring ring;
  };
  void declare_part(Builder& b, const ParamSpec& part);
  void bring_parts(Builder& b, Messages& messages, const std::vector<Part>& parts);
  Buf part(const std::string& name) const { return entry(name).part; }
  Buf weight(const std::string& name) const;
  const ParamSpec& spec(const std::string& name) const { return entry(name).spec; }
  Buf mask(const std::string& name) const { return entry(name).mask; }  // of a sparse one
  DType activation() const { return storage_.activation; }
  const Storage& storage() const { return storage_; }
  // As zeros, or with what was added so far.
  Buf gradient(Builder& b, const std::string& name);
  // For an op that can do without the zeros: it begins the gradient, or adds to it.
  struct Sum {
    Buf gradient;
    bool begins;
  };
  Sum gradient_sum(Builder& b, const std::string& name);

  // Zeros for every gradient of a layer, or of all layers: to be called before a loop that adds to
  // them, for within it each time round would begin at zero.
  void start_gradients(Builder& b, const std::string& layer);
  void start_all_gradients(Builder& b);

  // What a gradient's bytes count as. Not set: gradients.
  using PurposeOf = std::function<Purpose(const ParamSpec& spec)>;
  void gradients_are(PurposeOf purpose) { purpose_ = std::move(purpose); }

  // Where sums do not begin at zero: emits what brings the gradient's beginning. Not set: zeros.
  using Begin = std::function<void(const ParamSpec& spec, Buf gradient)>;
  void on_begin(Begin begin) { begin_ = std::move(begin); }

  // What happens when a gradient is complete and its weight has no further reader. Not set:
  // nothing.
  using Release = std::function<void(const ParamSpec& spec, Buf gradient)>;
  void on_complete(Release release) { release_ = std::move(release); }
  // Said by the layer that made the gradient. While micro-batches are still to come it only waits:
  // complete_waiting() says that all were there.
  void complete(const std::string& name);
  void complete_waiting();
  void wait_for_micro_batches(bool wait) { wait_ = wait; }

  // Ops that make gradients of matrices are put off: whatever else waits for a layer's backward
  // pass comes first. Those put off since the last call, in their order, each to be called once.
  using Late = std::vector<std::function<void()>>;
  void put_off_gradients(bool put_off) { puts_off_ = put_off; }
  bool puts_off() const { return puts_off_; }
  void put_off(std::function<void()> emit) { late_.push_back(std::move(emit)); }
  Late take_late() { return std::exchange(late_, {}); }

  // Gradients made so far are done with; the next pass begins with new ones.
  void forget_gradients();

  // The ranks that have the other parts of blocks of which this one has a part; null: it has all.
  void share_with(TensorPeers& peers) { peers_ = &peers; }
  TensorPeers* peers() const { return peers_; }

 private:
  struct Entry {
    ParamSpec spec;
    Buf weight, gradient, mask;
    Buf part = {};  // of the weight
  };
  const Entry& entry(const std::string& name) const;
  Buffer weight_buffer(const ParamSpec& spec) const;
  Buffer mask_buffer(const ParamSpec& spec) const;
  void declare_gradient(Builder& b, const std::string& name);
  const Storage storage_;
  const std::string prefix_;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> order_;
  PurposeOf purpose_ = [](const ParamSpec&) { return Purpose::gradient; };
  Begin begin_;
  Release release_;
  bool wait_ = false, puts_off_ = false;
  Late late_;
  std::vector<std::string> waiting_;
  TensorPeers* peers_ = nullptr;
};

// A linear layer by name: `name`.weight (N, K) and `name`.bias (N).
class LinearLayer {
 public:
  LinearLayer(Params& params, std::string name) : params_(&params), name_(std::move(name)) {}
  void forward(Builder& b, const std::string& label, Buf x, Buf y) const;  // x (R, K) -> y (R, N)
  void forward_gelu(Builder& b, const std::string& label, Buf x, Buf g) const;  // g = gelu(y)
  void forward_gelu(Builder& b, const std::string& label, Buf x, Buf y, Buf g) const;
  Buf forward(Builder& b, const std::string& label, Buf x) const;  // y in fp32
  // Adds to the gradients of weight and bias, and sets dx (R, K), stored as x is where it is made.
  void backward(Builder& b, const std::string& label, Buf dy, Buf x, Buf dx) const;
  Buf backward(Builder& b, const std::string& label, Buf dy, Buf x) const;
  // The same for an x that is gelu(u): returns du.
  Buf backward_gelu(Builder& b, const std::string& label, Buf dy, Buf x, Buf u) const;
  void backward_params_only(Builder& b, const std::string& label, Buf dy, Buf x) const;

 private:
  void emit_forward(Builder& b, const std::string& label, Buf x, LinearEnd end,
                    std::vector<Buf> writes) const;
  // u: dx is multiplied by the slope of gelu there; absent: it is not.
  void emit_backward(Builder& b, const std::string& label, Buf dy, Buf dx, Buf u) const;
  Linear sizes(int64_t rows_times_k, int64_t rows_times_n) const;
  void add_mask(std::vector<Buf>& reads) const;
  Buf bias(Builder& b, const std::string& label) const;
  void add_gradients(Builder& b, const std::string& label, Buf dy, Buf x) const;
  void emit_gradients(Builder& b, const std::string& label, Buf dy, Buf x) const;
  void complete() const;
  Params* params_;
  std::string name_;
};

Buf silu(Builder& b, const std::string& label, Buf x);
Buf silu_backward(Builder& b, const std::string& label, Buf dy, Buf x);
Buf add(Builder& b, const std::string& label, Buf x, Buf y);

}  // namespace ebb
