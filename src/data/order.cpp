#include "data/order.h"

#include <bit>

#include "base/error.h"
#include "base/rng.h"

namespace ebb {
namespace {

constexpr uint32_t kRounds = 6;

}  // namespace

Order::Order(uint64_t seed, int64_t count) : seed_(seed), count_(count) {
  require(count >= 1, "order: a set of {} samples", count);
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

// A Feistel network permutes 0 .. 4^half_bits - 1, which is less than four times count (or 4).
// Walking its cycle until the number is below count permutes 0 .. count - 1.
int64_t Order::at(int64_t position) const {
  require(position >= 0, "order: position {}", position);
  const auto epoch = static_cast<uint32_t>(position / count_);
  const uint32_t mask = (uint32_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(position % count_);
  do {
    auto left = static_cast<uint32_t>(value >> half_bits_);
    auto right = static_cast<uint32_t>(value) & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto bits = philox(seed_, static_cast<uint32_t>(Stream::order), epoch, right, round);
      const uint32_t mixed = left ^ (bits[0] & mask);
      left = right;
      right = mixed;
    }
    value = uint64_t{left} << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(value);
}

int64_t Order::stand_in(int64_t position, uint32_t attempt) const {
  const auto p = static_cast<uint64_t>(position);
  const auto bits = philox(seed_, static_cast<uint32_t>(Stream::stand_in),
                           static_cast<uint32_t>(p >> 32), static_cast<uint32_t>(p), attempt);
  return static_cast<int64_t>((uint64_t{bits[0]} << 32 | bits[1]) % static_cast<uint64_t>(count_));
}

}  // namespace ebb
