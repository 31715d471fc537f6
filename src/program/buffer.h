// A buffer of the program: a name, a purpose, a type and a shape. It has no pointer: where it
// lives is the planner's business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/dtype.h"

namespace ebb {

enum class Purpose : uint8_t {
  weight,
  gradient,
  moment,
  ema,
  activation,
  scratch,
  data,
  staging,   // what transfers of a lane go through
  exchange,  // what ranks send each other
};
inline constexpr int kPurposes = 9;
const char* purpose_name(Purpose purpose);

using Shape = std::vector<int64_t>;
int64_t element_count(const Shape& shape);
std::string shape_text(const Shape& shape);

// A handle to a buffer of one program.
struct Buf {
  int32_t id = -1;
  explicit operator bool() const { return id >= 0; }
  bool operator==(const Buf&) const = default;
};

// Where a buffer lives: in the device's memory, or beyond the lane of this number, where only
// transfers reach it.
using Home = int8_t;
inline constexpr Home kOnDevice = -1;

// A part of another buffer. In a loop it moves on by `stride` each time round.
struct View {
  Buf of;                          // never a view itself
  int64_t offset = 0, stride = 0;  // bytes
};

struct Buffer {
  std::string name;   // "block3.attn.qkv"
  std::string layer;  // "block3": the row of the ledger that it counts under
  Purpose purpose = Purpose::activation;
  DType type = DType::f32;
  Shape shape;
  bool resident = false;  // keeps its contents from one run of the program to the next
  Home home = kOnDevice;
  View view = {};  // without `of`: a buffer with bytes of its own

  bool away() const { return home != kOnDevice; }
  bool is_view() const { return static_cast<bool>(view.of); }

  int64_t count() const { return element_count(shape); }
  int64_t bytes() const { return count() * dtype_bytes(type); }
};

}  // namespace ebb
