#include "data/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace ebb {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes resized(const Bytes& pixels, const Resizer::Shape& shape, bool mirror = false) {
  Bytes x(static_cast<size_t>(shape.channels * shape.out_height * shape.out_width));
  std::vector<std::byte> scratch(static_cast<size_t>(Resizer::scratch_bytes(shape)));
  Resizer resizer(x.data(), shape, mirror, scratch);
  for (int64_t y = 0; y < shape.in_height; ++y) {
    resizer.add_row(pixels.data() + y * shape.in_width * shape.channels);
  }
  return x;
}

TEST(Resize, EqualSizeIsExact) {
  Bytes pixels(5 * 7 * 3);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(37 * i);
  const auto x = resized(pixels, {5, 7, 5, 7, 3});
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 35; ++i) {
      EXPECT_EQ(x[c * 35 + i], pixels[i * 3 + c]);
    }
  }
}

TEST(Resize, ConstantsStayAtEverySize) {
  for (const int64_t in : {1, 2, 3, 7, 64, 100}) {
    for (const int64_t out : {1, 2, 5, 32, 99}) {
      const Bytes pixels(static_cast<size_t>(in * (in + 3)), 51);
      for (const uint8_t x : resized(pixels, {in, in + 3, out, out, 1})) ASSERT_EQ(x, 51);
    }
  }
}

// The same filter, written plainly.
double triangle(const Bytes& pixels, int64_t in_h, int64_t in_w, int64_t out, int64_t i,
                int64_t j) {
  const double step = static_cast<double>(std::min(in_h, in_w)) / static_cast<double>(out);
  const double radius = std::max(1.0, step);
  double sum = 0, weights = 0;
  for (int64_t y = 0; y < in_h; ++y) {
    for (int64_t x = 0; x < in_w; ++x) {
      const double cy = in_h / 2.0 + (i + 0.5 - out / 2.0) * step;
      const double cx = in_w / 2.0 + (j + 0.5 - out / 2.0) * step;
      const double w = std::max(0.0, 1 - std::abs(y + 0.5 - cy) / radius) *
                       std::max(0.0, 1 - std::abs(x + 0.5 - cx) / radius);
      sum += w * pixels[y * in_w + x];
      weights += w;
    }
  }
  return sum / weights;
}

TEST(Resize, AgreesWithThePlainFilterAndMirrors) {
  for (const auto [in_h, in_w, out] : {std::array{17, 29, 8}, {40, 13, 13}, {9, 9, 20}}) {
    Bytes pixels(static_cast<size_t>(in_h * in_w));
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * i * 31);
    const Resizer::Shape shape = {in_h, in_w, out, out, 1};
    const auto x = resized(pixels, shape), flipped = resized(pixels, shape, true);
    for (int64_t i = 0; i < out; ++i) {
      for (int64_t j = 0; j < out; ++j) {
        ASSERT_NEAR(x[i * out + j], triangle(pixels, in_h, in_w, out, i, j), 0.5 + 1e-3);
        ASSERT_EQ(x[i * out + j], flipped[i * out + out - 1 - j]);
      }
    }
  }
}

}  // namespace
}  // namespace ebb
