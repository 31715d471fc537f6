// Samples that the program has in memory.
#pragma once

#include <memory>
#include <span>

#include "data/source.h"

namespace ebb {

// The arrays are not copied: they outlive the source and stay as they are. `labels`: one for each
// sample, from 0 on; none: no classes. Fail with Exit::data where sizes or labels do not fit.
//   pixels: (count, size, size, channels), 1 or 3 channels
//   values: (count, channels, size, size)
std::unique_ptr<Source> pixel_source(std::span<const uint8_t> pixels,
                                     std::span<const int32_t> labels, int64_t size,
                                     int64_t channels);
std::unique_ptr<Source> value_source(std::span<const float> values, std::span<const int32_t> labels,
                                     int64_t size, int64_t channels);

}  // namespace ebb
