// The state of a run - weights, moments, average - as tensors of fp32, however the plan stores it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/moment_code.h"
#include "model/storage.h"
#include "plan/plan.h"
#include "run/disk_store.h"

namespace ebb {

struct StateTensor {
  std::string name;  // "blocks.3.attn.qkv.weight", "m.blocks.3.attn.qkv.weight"
  std::string layer;
  Purpose purpose;
  Shape shape;
  DType type;       // of the buffer that has this name: u8 is a coded moment
  Buf values;       // that buffer
  Buf beside = {};  // a split weight's lower half, a coded moment's scales

  int64_t count() const { return element_count(shape); }
};

// All must outlive it. Values are read and written in parts, so that nothing of a tensor's size is
// taken besides.
class State {
 public:
  State(const Plan& plan, Memory memory);

  const std::vector<StateTensor>& tensors() const { return tensors_; }  // as the program has them
  const StateTensor& at(const std::string& name) const;

  // A part begins at a multiple of kMomentBlock.
  void read(const StateTensor& tensor, int64_t first, float* values, int64_t count) const;
  void write(const StateTensor& tensor, int64_t first, const float* values, int64_t count);

  // Of a tensor that lies in memory in fp32: where.
  bool is_whole(const StateTensor& tensor) const {
    return tensor.type == DType::f32 && !plan_.program.buffer(tensor.values).on_disk;
  }
  float* whole(const StateTensor& tensor) const {
    return reinterpret_cast<float*>(arena_ + plan_.offsets[tensor.values.id]);
  }

  // fill(values, first, count) for every part, in order; what is whole is one part.
  template <typename Fill>
  void fill(const StateTensor& tensor, Fill fill) {
    if (is_whole(tensor)) return fill(whole(tensor), int64_t{0}, tensor.count());
    constexpr int64_t kPart = 64 * kMomentBlock;
    float part[kPart];
    for (int64_t first = 0; first < tensor.count(); first += kPart) {
      const int64_t count = std::min(kPart, tensor.count() - first);
      fill(part, first, count);
      write(tensor, first, part, count);
    }
  }

 private:
  // Elements of a buffer, wherever it lies.
  template <typename T>
  void get(Buf b, int64_t first, T* values, int64_t count) const;
  template <typename T>
  void put(Buf b, int64_t first, const T* values, int64_t count);

  const Plan& plan_;
  std::byte* arena_;
  DiskStore* disk_;
  std::vector<StateTensor> tensors_;
};

}  // namespace ebb
