#include "train/state.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/float16.h"

namespace ebb {

namespace {

bool is_second_moment(const StateTensor& tensor) { return tensor.name.starts_with(kSecondMoment); }

// The scales are beside m.NAME and v.NAME as m_scale.NAME and v_scale.NAME.
std::string scale_name(const std::string& moment) {
  const bool second = moment.starts_with(kSecondMoment);
  const std::string own = moment.substr(std::string(second ? kSecondMoment : kFirstMoment).size());
  return (second ? kSecondScale : kFirstScale) + own;
}

}  // namespace

State::State(const Plan& plan, std::byte* arena) : plan_(plan), arena_(arena) {
  const Program& program = plan.program;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    const bool state =
        b.purpose == Purpose::weight || b.purpose == Purpose::moment || b.purpose == Purpose::ema;
    const bool beside = b.name.starts_with(kLow) || b.name.starts_with(kFirstScale) ||
                        b.name.starts_with(kSecondScale);
    if (!b.resident || !state || beside) continue;
    StateTensor tensor{b.name, b.layer, b.purpose, b.shape, b.type, Buf{static_cast<int32_t>(i)}};
    if (b.type == DType::u8) tensor.beside = program.at(scale_name(b.name));
    if (b.purpose == Purpose::weight) tensor.beside = program.find(kLow + b.name);
    tensors_.push_back(std::move(tensor));
  }
}

const StateTensor& State::at(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const StateTensor& t) { return t.name == name; });
  require(found != tensors_.end(), "state: no tensor named {}", name);
  return *found;
}

CodedBlock State::coded(const StateTensor& t, int64_t first) const {
  return {place<uint8_t>(t.values) + first, place<float>(t.beside) + first / kMomentBlock};
}

void State::read(const StateTensor& t, int64_t first, float* values, int64_t count) const {
  switch (t.type) {
    case DType::f32:
      std::copy_n(place<float>(t.values) + first, count, values);
      return;
    case DType::bf16: {
      const Bf16* high = place<Bf16>(t.values) + first;
      const int16_t* low = t.beside ? place<int16_t>(t.beside) + first : nullptr;
      for (int64_t i = 0; i < count; ++i) {
        values[i] = low ? SplitFloat{high[i], low[i]}.whole() : static_cast<float>(high[i]);
      }
      return;
    }
    case DType::u8:
      for (int64_t i = 0; i < count; i += kMomentBlock) {
        const int64_t n = std::min(kMomentBlock, count - i);
        const CodedBlock block = coded(t, first + i);
        is_second_moment(t) ? decode_second(values + i, block, n)
                            : decode_first(values + i, block, n);
      }
      return;
    default:
      throw Bug("state: " + t.name + " is stored as " + dtype_name(t.type));
  }
}

void State::write(const StateTensor& t, int64_t first, const float* values, int64_t count) {
  switch (t.type) {
    case DType::f32:
      std::copy_n(values, count, place<float>(t.values) + first);
      return;
    case DType::bf16: {
      Bf16* high = place<Bf16>(t.values) + first;
      int16_t* low = t.beside ? place<int16_t>(t.beside) + first : nullptr;
      for (int64_t i = 0; i < count; ++i) {
        const SplitFloat parts = SplitFloat::of(values[i]);
        high[i] = low ? parts.high : Bf16::nearest(values[i]);
        if (low) low[i] = parts.low;
      }
      return;
    }
    case DType::u8:
      for (int64_t i = 0; i < count; i += kMomentBlock) {
        const int64_t n = std::min(kMomentBlock, count - i);
        const CodedBlock block = coded(t, first + i);
        const auto nearest = [](int64_t) { return 0.5f; };
        if (!is_second_moment(t)) {
          encode_first(block, values + i, n, nearest);
          continue;
        }
        float roots[kMomentBlock];
        for (int64_t k = 0; k < n; ++k) roots[k] = std::sqrt(std::max(0.0f, values[i + k]));
        encode_second(block, roots, n, nearest);
      }
      return;
    default:
      throw Bug("state: " + t.name + " is stored as " + dtype_name(t.type));
  }
}

}  // namespace ebb
