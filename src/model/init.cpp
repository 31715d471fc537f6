// Starting values and the fixed position table.
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/cpu/parallel.h"
#include "model/config.h"

namespace ebb {

uint32_t name_key(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

namespace {

// 2-D sines and cosines: the first half of the channels encodes the column, the second the row.
void fill_positions(float* table, const DitConfig& c) {
  const int64_t grid = c.image_size / c.patch;
  const int64_t quarter = c.width / 4;
  for (int64_t row = 0; row < grid; ++row) {
    for (int64_t column = 0; column < grid; ++column) {
      float* out = table + (row * grid + column) * c.width;
      for (int64_t k = 0; k < quarter; ++k) {
        const double omega = std::pow(10000.0, -static_cast<double>(k) / quarter);
        out[k] = static_cast<float>(std::sin(column * omega));
        out[quarter + k] = static_cast<float>(std::cos(column * omega));
        out[2 * quarter + k] = static_cast<float>(std::sin(row * omega));
        out[3 * quarter + k] = static_cast<float>(std::cos(row * omega));
      }
    }
  }
}

// Four numbers at a time, each a function of its place in the tensor.
template <typename FourOf>
void fill_random(float* values, int64_t first, int64_t count, uint64_t seed,
                 const std::string& name, FourOf four_of) {
  const uint32_t key = name_key(name);
  cpu::parallel_range(count, 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      const int64_t place = (first + i) / 4;
      const std::array<double, 4> four =
          four_of(philox(seed, static_cast<uint32_t>(Stream::init), key,
                         static_cast<uint32_t>(place >> 32), static_cast<uint32_t>(place)));
      for (int64_t k = 0; k < 4 && i + k < end; ++k) values[i + k] = static_cast<float>(four[k]);
    }
  });
}

}  // namespace

void initialise(float* values, const ParamSpec& spec, uint64_t seed, const DitConfig& config) {
  initialise_part(values, 0, element_count(spec.shape), spec, seed, config);
}

void initialise_part(float* values, int64_t first, int64_t count, const ParamSpec& spec,
                     uint64_t seed, const DitConfig& config) {
  const int64_t whole = element_count(spec.shape);
  const int64_t rows = spec.shape[0];
  const int64_t columns = whole / rows;
  const double bound = std::sqrt(6.0 / static_cast<double>(rows + columns));
  switch (spec.init) {
    case Init::positions:
      require(count == whole, "{}: only the whole table can be made", spec.name);
      return fill_positions(values, config);
    case Init::zero:
    case Init::one:
      for (int64_t i = 0; i < count; ++i) values[i] = spec.init == Init::one ? 1.0f : 0.0f;
      return;
    case Init::xavier:
      return fill_random(values, first, count, seed, spec.name, [=](const auto& bits) {
        std::array<double, 4> uniform;
        for (int k = 0; k < 4; ++k) uniform[k] = bound * (2 * open_unit(bits[k]) - 1);
        return uniform;
      });
    case Init::normal:
      return fill_random(values, first, count, seed, spec.name, [](const auto& bits) {
        std::array<double, 4> gauss = normals(bits);
        for (double& value : gauss) value *= 0.02;
        return gauss;
      });
  }
}

}  // namespace ebb
