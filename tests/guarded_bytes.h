// Memory for an op's operands, in any order that a test wants, with guards between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ebb {

inline int order_count(int n) { return (n + 1) / 2 * 2; }

// Order k > 0 of n things. 0, 1, -1, 2, -2, ... go on by another number each time; so, counted from
// k on and modulo an even number, each thing is right before each other in one order. Where n is
// odd, one thing more has no place.
inline std::vector<int> order_of(int n, int k) {
  std::vector<int> order;
  if (k == 0) {
    for (int i = 0; i < n; ++i) order.push_back(i);
    return order;
  }
  const int even = order_count(n);
  for (int j = 0; j < even; ++j) {
    const int step = j % 2 == 1 ? (j + 1) / 2 : even - j / 2;
    if ((step + k) % even < n) order.push_back((step + k) % even);
  }
  return order;
}

// Buffers as the device sees them: one after the other, each at a multiple of its alignment. What
// is between two, `between` such multiples at least, nobody may touch.
class GuardedBytes {
 public:
  GuardedBytes(const std::vector<size_t>& sizes, int between, int order)
      : sizes_(sizes), begins_(sizes.size()) {
    size_t end = kUnit;
    for (const int i : order_of(static_cast<int>(sizes.size()), order)) {
      begins_[i] = end;
      end = (end + sizes[i] + kUnit - 1) / kUnit * kUnit + kUnit * between;
    }
    bytes_.assign(kPage + end + kUnit, kGuard);
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    data_ = bytes_.data() + (kPage - address % kPage) % kPage;
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::span<std::byte> at(size_t i) { return {data_ + begins_[i], sizes_[i]}; }
  bool guards_hold() const {
    std::vector<bool> inside(bytes_.size());
    const auto first = static_cast<size_t>(data_ - bytes_.data());
    for (size_t i = 0; i < sizes_.size(); ++i) {
      std::fill_n(inside.begin() + first + begins_[i], sizes_[i], true);
    }
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (!inside[i] && bytes_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kUnit = 64, kPage = 4096;
  static constexpr std::byte kGuard{0xa5};
  std::vector<size_t> sizes_, begins_;
  std::vector<std::byte> bytes_;
  std::byte* data_;
};

}  // namespace ebb
