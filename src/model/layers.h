// The pieces that blocks are made of. Each emits; none runs anything.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "program/builder.h"

namespace ebb {

// The parameters of a model inside one program: weights by the reference's names, and gradients
// that come into being, as zeros, when the first op is about to add to them.
class Params {
 public:
  // Declares resident weights. `prefix` picks a set: "" the weights, "ema." their average.
  Params(Builder& b, const std::vector<ParamSpec>& specs, const std::string& prefix = "");
  Buf weight(const std::string& name) const;
  Buf gradient(Builder& b, const std::string& name);

 private:
  struct Entry {
    ParamSpec spec;
    Buf weight, gradient;
  };
  std::map<std::string, Entry> entries_;
};

// A linear layer by name: `name`.weight (N, K) and `name`.bias (N).
class LinearLayer {
 public:
  LinearLayer(Params& params, std::string name) : params_(&params), name_(std::move(name)) {}
  Buf forward(Builder& b, const std::string& label, Buf x) const;          // x (R, K) -> (R, N)
  Buf backward_input(Builder& b, const std::string& label, Buf dy) const;  // dy (R, N) -> dx (R, K)
  void backward_params(Builder& b, const std::string& label, Buf dy, Buf x) const;

 private:
  Params* params_;
  std::string name_;
};

Buf silu(Builder& b, const std::string& label, Buf x);
Buf silu_backward(Builder& b, const std::string& label, Buf dy, Buf x);
Buf gelu(Builder& b, const std::string& label, Buf x);
Buf gelu_backward(Builder& b, const std::string& label, Buf dy, Buf x);
Buf add(Builder& b, const std::string& label, Buf x, Buf y);

}  // namespace ebb
