#include "data/resize.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ebb {

double Resizer::step_of(const Shape& shape) {
  return std::min(static_cast<double>(shape.in_height) / static_cast<double>(shape.out_height),
                  static_cast<double>(shape.in_width) / static_cast<double>(shape.out_width));
}

int64_t Resizer::max_taps(double step) {
  return static_cast<int64_t>(std::ceil(2 * std::max(1.0, step))) + 2;
}

int64_t Resizer::scratch_bytes(const Shape& shape) {
  const int64_t floats =
      shape.out_width * (max_taps(step_of(shape)) + shape.channels * (1 + shape.out_height)) +
      shape.out_height;
  return shape.out_width * static_cast<int64_t>(sizeof(Taps)) +
         floats * static_cast<int64_t>(sizeof(float));
}

Resizer::Resizer(uint8_t* pixels, const Shape& shape, bool mirror, std::span<std::byte> scratch)
    : pixels_(pixels),
      shape_(shape),
      mirror_(mirror),
      step_(step_of(shape)),
      radius_(std::max(1.0, step_)) {
  require(std::ssize(scratch) >= scratch_bytes(shape), "resize: scratch too small");
  const auto width = static_cast<size_t>(shape.out_width);
  columns_ = {reinterpret_cast<Taps*>(scratch.data()), width};
  auto* floats = reinterpret_cast<float*>(columns_.data() + width);
  line_ = {floats, width * static_cast<size_t>(shape.channels)};
  floats += line_.size();
  row_scale_ = {floats, static_cast<size_t>(shape.out_height)};
  floats += row_scale_.size();
  sums_ = {floats, line_.size() * row_scale_.size()};
  floats += sums_.size();

  for (int64_t i = 0; i < shape.out_width; ++i) {
    int64_t begin = 0, end = 0;
    bounds(&begin, &end, i, shape.in_width, shape.out_width);
    columns_[i] = {static_cast<int32_t>(begin), static_cast<int32_t>(end), floats};
    double sum = 0;
    for (int64_t j = begin; j < end; ++j) sum += weight(i, j, shape.in_width, shape.out_width);
    for (int64_t j = begin; j < end; ++j) {
      *floats++ = static_cast<float>(weight(i, j, shape.in_width, shape.out_width) / sum);
    }
  }
  for (int64_t i = 0; i < shape.out_height; ++i) {
    int64_t begin = 0, end = 0;
    bounds(&begin, &end, i, shape.in_height, shape.out_height);
    double sum = 0;
    for (int64_t j = begin; j < end; ++j) sum += weight(i, j, shape.in_height, shape.out_height);
    row_scale_[i] = static_cast<float>(1 / sum);
  }
  std::ranges::fill(sums_, 0.0f);
}

double Resizer::weight(int64_t i, int64_t j, int64_t in, int64_t out) const {
  // Distances are taken from the two middles, so mirrored pixels have equal weights.
  const double centre = (static_cast<double>(i) + 0.5 - 0.5 * static_cast<double>(out)) * step_;
  const double at = static_cast<double>(j) + 0.5 - 0.5 * static_cast<double>(in);
  return std::max(0.0, 1 - std::abs(at - centre) / radius_);
}

void Resizer::bounds(int64_t* begin, int64_t* end, int64_t i, int64_t in, int64_t out) const {
  const double centre = 0.5 * static_cast<double>(in) +
                        (static_cast<double>(i) + 0.5 - 0.5 * static_cast<double>(out)) * step_;
  *begin = std::max<int64_t>(0, static_cast<int64_t>(std::floor(centre - radius_)));
  *end = std::min<int64_t>(in, static_cast<int64_t>(std::ceil(centre + radius_)));
  while (*begin + 1 < *end && weight(i, *begin, in, out) == 0) ++*begin;
  while (*begin + 1 < *end && weight(i, *end - 1, in, out) == 0) --*end;
}

void Resizer::add_row(const uint8_t* row) {
  require(row_ < shape_.in_height, "resize: row {} of {}", row_, shape_.in_height);
  const int64_t H = shape_.out_height, W = shape_.out_width;
  const int C = shape_.channels;
  bool scaled = false;
  for (int64_t i = first_out_; i < H; ++i) {
    int64_t begin = 0, end = 0;
    bounds(&begin, &end, i, shape_.in_height, H);
    if (row_ >= end) first_out_ = i + 1;
    if (row_ >= end) continue;
    if (row_ < begin) break;
    if (!scaled) {
      scaled = true;
      for (int64_t column = 0; column < W; ++column) {
        const Taps& taps = columns_[column];
        for (int c = 0; c < C; ++c) {
          float sum = 0;
          for (int32_t j = taps.begin; j < taps.end; ++j) {
            sum = std::fma(taps.weights[j - taps.begin], row[int64_t{j} * C + c], sum);
          }
          line_[c * W + (mirror_ ? W - 1 - column : column)] = sum;
        }
      }
    }
    const float share = static_cast<float>(weight(i, row_, shape_.in_height, H)) * row_scale_[i];
    for (int c = 0; c < C; ++c) {
      float* out = sums_.data() + (c * H + i) * W;
      const float* line = line_.data() + c * W;
      for (int64_t column = 0; column < W; ++column) {
        out[column] = std::fma(share, line[column], out[column]);
      }
    }
  }
  if (++row_ == shape_.in_height) finish();
}

void Resizer::finish() {
  for (size_t i = 0; i < sums_.size(); ++i) {
    pixels_[i] = static_cast<uint8_t>(std::lround(std::clamp(sums_[i], 0.0f, 255.0f)));
  }
}

}  // namespace ebb
