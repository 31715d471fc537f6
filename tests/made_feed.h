// Samples out of nothing, for steps that take theirs from a feed.
#pragma once

#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "program/feed.h"

namespace ebb {

class MadeFeed final : public Feed {
 public:
  MadeFeed(int64_t batch, int64_t values, int64_t classes, DType type)
      : batch_(batch), values_(values), classes_(classes), type_(type) {}

  static uint8_t pixel(int64_t sample, int64_t i) {
    return static_cast<uint8_t>(sample * 57 + i * 31 + i * i % 13);
  }
  static int32_t label(int64_t sample, int64_t classes) {
    return static_cast<int32_t>(sample * 7 % classes);
  }

  void take(DeviceMemory& memory, Place values, const Place* labels, int64_t first,
            int64_t count) override {
    require(first == next_, "feed: asked for sample {}, the next is {}", first, next_);
    const int64_t bytes = values_ * dtype_bytes(type_);
    for (int64_t b = 0; b < count; ++b) {
      const std::vector<std::byte> sample = stored(first + b);
      memory.write({values.piece, values.offset + b * bytes}, sample.data(), bytes);
      if (labels == nullptr) continue;
      const int32_t y = label(first + b, classes_);
      memory.write({labels->piece, labels->offset + b * 4}, &y, 4);
    }
    next_ = (next_ + count) % batch_;
  }

 private:
  std::vector<std::byte> stored(int64_t sample) const {
    std::vector<std::byte> bytes(values_ * dtype_bytes(type_));
    for (int64_t i = 0; i < values_; ++i) {
      const float x = static_cast<float>(pixel(sample, i)) / 127.5f - 1;
      const F16 half = F16::nearest(x);
      const uint8_t byte = pixel(sample, i);
      const void* from = type_ == DType::u8    ? static_cast<const void*>(&byte)
                         : type_ == DType::f16 ? static_cast<const void*>(&half)
                                               : &x;
      std::memcpy(&bytes[i * dtype_bytes(type_)], from, dtype_bytes(type_));
    }
    return bytes;
  }

  const int64_t batch_, values_, classes_;
  const DType type_;
  int64_t next_ = 0;
};

}  // namespace ebb
