// The order of the samples: a function of seed and position alone. Nothing is stored, so resuming
// at a step needs the step and nothing else.
#pragma once

#include <cstdint>

namespace ebb {

// Position p belongs to epoch p / count. Every epoch is a pseudo-random permutation of
// 0 .. count-1 of its own. Immutable: safe from any thread.
class Order {
 public:
  Order(uint64_t seed, int64_t count);

  // The sample at a position >= 0 (step * batch + i).
  int64_t at(int64_t position) const;

  // The samples that may stand in for at(position) where that one is bad, in the order in which
  // they are tried: independent draws from all samples.
  int64_t stand_in(int64_t position, uint32_t attempt) const;

 private:
  uint64_t seed_;
  int64_t count_;
  int half_bits_;  // the permutation works on numbers of twice as many bits
};

}  // namespace ebb
