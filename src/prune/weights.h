// Weights that go one by one, by their magnitude: which of each matrix stay.
#pragma once

#include <bit>
#include <cmath>
#include <map>
#include <string>

#include "formats/safetensors.h"
#include "prune/selection.h"
#include "prune/structure.h"

namespace ebb {

// Of one matrix: all above a magnitude stay, and the first ones of just that magnitude.
struct Magnitude {
  uint32_t least = 0;    // its bits, which grow as it does
  int64_t of_least = 0;  // that stay
  int64_t left = 0;      // weights that stay, in all
};
using Magnitudes = std::map<std::string, Magnitude>;  // by the parameter's name in the file

inline uint32_t magnitude_bits(float weight) {
  return std::bit_cast<uint32_t>(weight) & 0x7fffffffu;
}

// What a matrix has left when its elements are gone through in order.
class Sieve {
 public:
  explicit Sieve(const Magnitude& m) : least_(m.least), of_least_(m.of_least) {}
  bool keeps(float weight) {
    const uint32_t bits = magnitude_bits(weight);
    return bits > least_ || (bits == least_ && of_least_-- > 0);
  }

 private:
  uint32_t least_;
  int64_t of_least_;
};

// Of the weights that are there and whose structures survive, `amount` goes: of each matrix, or of
// all of them together. Without an amount all stay. Only of matrices that are or become sparse.
// Reads each matrix two or three times, in parts, and keeps a histogram in memory. Fails with
// Exit::usage where nothing would be left, Exit::numbers on a weight that is not finite.
Magnitudes choose_weights(const SafetensorsReader& file, const DitConfig& config,
                          const Survivors& kept, const Amount& amount, Scope scope);

// The pruned model, with what is left of its matrices.
DitConfig with_weights(DitConfig pruned, const DitConfig& config, const Survivors& kept,
                       const Magnitudes& left);
// The same before it is known which weights go: as many of each matrix as its share.
DitConfig with_expected_weights(DitConfig pruned, const DitConfig& config, const Survivors& kept,
                                const Amount& amount);

}  // namespace ebb
