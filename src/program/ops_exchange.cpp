#include "program/ops_exchange.h"

#include <algorithm>

#include "program/ops.h"

namespace ebb {

namespace {

// Reads 8 bytes and writes 4 for each of its elements.
AddTo that_moves(int64_t bytes) { return {(bytes + 11) / 12}; }

}  // namespace

AddTo GateCodes::measured_as() const { return that_moves(4 * (others + 4)); }
AddTo EncodeBf16::measured_as() const { return that_moves(6 * n); }
AddTo EncodeBf16Feedback::measured_as() const { return that_moves(10 * n); }
AddTo AddBf16::measured_as() const { return that_moves(10 * n); }
AddTo AddInt8::measured_as() const { return that_moves(9 * n); }

// Each number is in a line of its own that is read and written, or all of them are.
AddTo AddTopK::measured_as() const {
  constexpr int64_t kLine = 64;
  return that_moves(8 * k + std::min(2 * kLine * k, 8 * n));
}

AddTo PowerKeep::measured_as() const { return that_moves(12 * K * R); }

// The residual is gone over twice: once for the mean.
AddTo SignEncode::measured_as() const { return that_moves(20 * n); }
AddTo SignMomentum::measured_as() const { return that_moves(24 * n); }
AddTo SignKeep::measured_as() const { return that_moves(4 * n + sign_bytes(n)); }
AddTo SignAdd::measured_as() const { return that_moves(8 * n + sign_bytes(n)); }

}  // namespace ebb
