// The state of a run - weights, moments, average - as tensors of fp32, however the plan stores it.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/moment_code.h"
#include "model/optimizer.h"
#include "model/step.h"
#include "run/run_memory.h"

namespace ebb {

struct StateTensor {
  std::string name;  // "blocks.3.attn.qkv.weight", "m.blocks.3.attn.qkv.weight"
  std::string layer;
  Purpose purpose;
  Shape shape;
  DType type;  // of the buffer that has this name
  Coding coding;
  Buf values;       // that buffer
  Buf beside = {};  // what completes it
  // Of a sparse one: the matrix that this is left of, how many of its elements are, and which.
  Shape matrix = {};
  int64_t left = 0;
  Buf mask = {};
  Slice slice = {};  // of the tensor that files have, where ranks have parts of it

  const Shape& whole_shape() const { return slice.any() ? slice.whole : shape; }
  int64_t count() const { return element_count(shape); }
  // Of the exchange of gradients: what that means is a matter of the ranks.
  bool of_exchange() const { return purpose == Purpose::exchange; }
  bool is_mask() const { return coding == Coding::mask; }
  // Of a split weight that another rank updates, only the bf16 is here. It can be written, but what
  // the whole number is its owner knows.
  bool complete() const { return coding != Coding::split || beside; }
  // As files have it: fp32, or the bytes of a mask.
  int64_t file_bytes() const {
    return count() * (is_mask() ? 1 : static_cast<int64_t>(sizeof(float)));
  }
  // Of the buffer that has its name; not of a mask.
  int64_t stored_bytes() const { return count() * dtype_bytes(type); }
};

// All that a step keeps of a model, wherever it lies, in the order in which files have it: weights
// first, then what the optimizer adds. Their buffers are not known.
std::vector<StateTensor> state_tensors(const DitConfig& config, const StepSpec& spec);

// A mask as files have it: rows of whole bytes, a bit for each column, the lowest first.
constexpr int64_t mask_bytes(int64_t columns) { return (columns + 7) / 8; }

// All must outlive it. Values are read and written in parts, so that nothing of a tensor's size is
// taken besides.
class State {
 public:
  // What the plan's program has of it: a rank has only some. `spec` says how the step keeps it.
  State(const Plan& plan, RunMemory& memory, const DitConfig& config, const StepSpec& spec);

  const std::vector<StateTensor>& tensors() const { return tensors_; }  // as state_tensors() has it
  const StateTensor* find(const std::string& name) const;               // null: it is not here
  int groups() const { return groups_; }                 // that take shares of a batch
  bool sends_momenta() const { return sends_momenta_; }  // and not gradients
  const StateTensor& at(const std::string& name) const;

  // What is written begins at a multiple of kMomentBlock.
  void read(const StateTensor& tensor, int64_t first, float* values, int64_t count) const;
  void write(const StateTensor& tensor, int64_t first, const float* values, int64_t count);

  // Bytes [offset, offset + count) of the buffer that has its name, as they are.
  void read_stored(const StateTensor& tensor, int64_t offset, void* bytes, int64_t count) const;

  // Bytes [offset, offset + count) of what files have of it, of a part of a tensor its own numbers.
  void read_as_filed(const StateTensor& tensor, int64_t offset, void* bytes, int64_t count) const;
  // The same of a mask.
  void read_mask(const StateTensor& tensor, int64_t offset, uint8_t* bytes, int64_t count) const;
  // row_of(row, bytes) gives one row after the other. How many elements are left by it, or -1 where
  // a bit is set behind the last column.
  using RowOf = std::function<void(int64_t row, uint8_t* bytes)>;
  int64_t write_mask(const StateTensor& tensor, const RowOf& row_of);

  // Of numbers that are left in the places of a sparse tensor: elements of the whole matrix, those
  // that were pruned as 0.
  void spread(const StateTensor& tensor, const float* left, int64_t first, float* values,
              int64_t count) const;

  // Of a tensor that the host reaches as fp32: all of it; else null.
  float* whole(const StateTensor& tensor) const {
    if (tensor.type != DType::f32) return nullptr;
    return reinterpret_cast<float*>(memory_.host(plan_, tensor.values).data());
  }

  // fill(values, first, count) for every part, in order; what is whole is one part.
  template <typename Fill>
  void fill(const StateTensor& tensor, Fill fill) {
    if (float* all = whole(tensor)) return fill(all, int64_t{0}, tensor.count());
    constexpr int64_t kPart = 64 * kMomentBlock;
    float part[kPart];
    for (int64_t first = 0; first < tensor.count(); first += kPart) {
      const int64_t count = std::min(kPart, tensor.count() - first);
      fill(part, first, count);
      write(tensor, first, part, count);
    }
  }

  // fill(values) for all of it at once: for what is small.
  template <typename Fill>
  void fill_whole(const StateTensor& tensor, Fill fill) {
    if (float* all = whole(tensor)) return fill(all);
    std::vector<float> all(tensor.count());
    fill(all.data());
    write(tensor, 0, all.data(), tensor.count());
  }

 private:
  // Elements of a buffer, wherever it lies.
  template <typename T>
  void get(Buf b, int64_t first, T* values, int64_t count) const;
  template <typename T>
  void put(Buf b, int64_t first, const T* values, int64_t count);

  const Plan& plan_;
  RunMemory& memory_;
  const int groups_;
  const bool sends_momenta_;
  std::vector<StateTensor> tensors_;
};

}  // namespace ebb
