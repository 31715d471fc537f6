// Counter-based random numbers: a value is a function of its key alone, so nothing is stored and
// a replay is exact.
#pragma once

#include <array>
#include <cstdint>

namespace ebb {

// What a random number is for. Numbers of different streams are independent.
enum class Stream : uint32_t {
  noise = 1,
  time = 2,
  label_drop = 3,
  order = 4,
  flip = 5,
  init = 6,
  sampler_start = 7,
  sampler_noise = 8,
  ema_rounding = 9,
  moment_rounding = 10,
  stand_in = 11,
  prune = 12,
  left = 13,
  exchange_rounding = 14,
  exchange_choice = 15,
  projector = 16,
};

// Philox4x32-10 of the counter (block, sample, step, stream) under a 64-bit key.
inline std::array<uint32_t, 4> philox(uint64_t seed, uint32_t stream, uint32_t step,
                                      uint32_t sample, uint32_t block) {
  std::array<uint32_t, 4> c = {block, sample, step, stream};
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// A fair coin for every sample that a run takes, by its place among all of them.
inline bool is_mirrored(uint64_t seed, int64_t position) {
  const auto p = static_cast<uint64_t>(position);
  return philox(seed, static_cast<uint32_t>(Stream::flip), static_cast<uint32_t>(p >> 32),
                static_cast<uint32_t>(p), 0)[0] &
         1;
}

// 32 random bits as a number strictly inside (0, 1).
inline double open_unit(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// Four standard normal numbers from one Philox result (Box-Muller).
std::array<double, 4> normals(const std::array<uint32_t, 4>& bits);

}  // namespace ebb
