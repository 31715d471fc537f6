// From 8-bit pixels of any size to those that the network sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ebb {

// Scales by one factor so that the output is just covered, with a triangle filter that widens when
// shrinking (so nothing aliases), crops the centre, and rounds to the nearest pixel. At equal size
// every pixel stays what it is.
//
// Takes the input a row at a time and sums what comes out of it, so an image of any size needs
// memory for the sums only.
class Resizer {
 public:
  struct Shape {
    int64_t in_height, in_width;
    int64_t out_height, out_width;
    int channels;
  };
  static int64_t scratch_bytes(const Shape& shape);

  // pixels: (channels, out_height, out_width), mirrored left to right if `mirror`. `scratch`:
  // scratch_bytes(shape) bytes, aligned to 8; both are used until the last row is added.
  Resizer(uint8_t* pixels, const Shape& shape, bool mirror, std::span<std::byte> scratch);

  // The next input row, (in_width, channels). The last one finishes the pixels.
  void add_row(const uint8_t* row);

 private:
  // Input pixels begin .. end-1 weigh into one output pixel, by weights[0 .. end-begin-1].
  struct Taps {
    int32_t begin, end;
    const float* weights;
  };
  static double step_of(const Shape& shape);
  static int64_t max_taps(double step);
  // 1 at the centre of output pixel i, falling to 0 at the filter's radius.
  double weight(int64_t i, int64_t j, int64_t in, int64_t out) const;
  // The input pixels that can weigh into output pixel i.
  void bounds(int64_t* begin, int64_t* end, int64_t i, int64_t in, int64_t out) const;
  void finish();

  uint8_t* pixels_;
  Shape shape_;
  bool mirror_;
  double step_;    // input pixels per output pixel
  double radius_;  // of the filter, in input pixels
  int64_t row_ = 0;
  int64_t first_out_ = 0;  // output rows before this one are complete
  std::span<Taps> columns_;
  std::span<float> row_scale_;  // 1 / the sum of weights of each output row
  std::span<float> line_;       // (channels, out_width): the input row, scaled in width
  std::span<float> sums_;       // (channels, out_height, out_width)
};

}  // namespace ebb
