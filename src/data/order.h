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

  // A fair coin of its own for every position.
  bool flip_at(int64_t position) const;

 private:
  uint64_t seed_;
  int64_t count_;
  int half_bits_;  // the permutation works on numbers of twice as many bits
};

}  // namespace ebb
