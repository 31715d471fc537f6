// What the optimizer keeps of each parameter, and the ops that update it. What is declared, what it
// costs, how it is saved and how kernels find it all follow from state_of().
#pragma once

#include <string>
#include <vector>

#include "model/storage.h"

namespace ebb {

struct StepSpec;

// How values are read out of a buffer.
enum class Coding : uint8_t {
  plain,          // as its type says
  split,          // a bf16 and, beside it, what that is off by
  first_moment,   // codes of 8 bits and, beside them, a scale for each block of them
  second_moment,  // the same, of what is never negative
  beside,         // completes another, and is no tensor by itself
  mask,           // which elements of the others are left
};

// One buffer of a parameter's state.
struct StateBuffer {
  std::string prefix;  // its name is this and the parameter's own
  Purpose purpose;
  DType type;
  Shape shape;
  Coding coding = Coding::plain;
  std::string other = "";  // prefix of the one beside it

  bool updated() const { return coding != Coding::mask; }
  int64_t bytes() const { return element_count(shape) * dtype_bytes(type); }
};

// An optimizer, as its table has it.
struct OptimizerKind {
  const char* name;
  const char* note;     // for `compare`
  double beta1, beta2;  // where the user does not say; 0: it has none
  bool codes_moments;   // they can be stored in 8 bits
  // Its own part of the state, between the weight and the average, and its op.
  void (*add_own)(std::vector<StateBuffer>& state, const ParamSpec& param, const Storage& storage);
  OpParams (*update)(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                     uint32_t tensor);
};
const std::vector<OptimizerKind>& optimizers();  // in the order of Optimizer

// Prefixes of all tensors that some optimizer saves, the average's among them.
std::vector<std::string> saved_prefixes();

// In the order in which the update's ops take them, but for the mask, which they leave alone: the
// weight first, the average last. Without an update, and of what is not trained, the weight alone,
// and its mask.
std::vector<StateBuffer> state_of(const ParamSpec& param, const StepSpec& spec,
                                  const Storage& storage);

// What the rank of a group keeps of a parameter for the exchange of gradients; no update touches
// it. What is left of a sum only the rank that adds up keeps.
std::vector<StateBuffer> exchange_state(const ParamSpec& param, const Storage& storage, int group);

// The op that updates one tensor; it reads the gradient and the clip factor, and updates all of
// state_of(), but for the average of what is shrunk. `tensor` keys its random bits.
OpParams update_op(const ParamSpec& param, const StepSpec& spec, const Storage& storage,
                   uint32_t tensor = 0);

// The op that tells the squared norm of a gradient; it reads that, and writes all norms.
OpParams norm_op(const ParamSpec& param, const Storage& storage, int64_t slot);

// Whether a penalty shrinks the tensor after its update, which then leaves its average to that op;
// and whether as part of structures, whose other tensors have to be updated before.
bool shrinks(const ParamSpec& param, const StepSpec& spec);
bool in_group(const ParamSpec& param, const StepSpec& spec);
// Of a tensor in a group; the first one begins the sums.
OpParams squares_op(const ParamSpec& param, const DitConfig& config, const StepSpec& spec,
                    const Storage& storage, bool begins);
OpParams shrink_op(const ParamSpec& param, const DitConfig& config, const StepSpec& spec,
                   const Storage& storage, uint32_t tensor = 0);

}  // namespace ebb
