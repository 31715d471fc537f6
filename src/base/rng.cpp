#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace ebb {

std::array<double, 4> normals(const std::array<uint32_t, 4>& bits) {
  std::array<double, 4> out{};
  for (int pair = 0; pair < 4; pair += 2) {
    const double radius = std::sqrt(-2 * std::log(open_unit(bits[pair])));
    const double angle = 2 * std::numbers::pi * open_unit(bits[pair + 1]);
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
  return out;
}

}  // namespace ebb
