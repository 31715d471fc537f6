// What tells one set of samples from another: a hash of what determines them and their order.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace ebb {

// Takes fields one after the other; texts carry their length, so ("ab", "c") is not ("a", "bc").
class Fingerprint {
 public:
  explicit Fingerprint(std::string_view kind);
  void add(int64_t number);
  void add(std::string_view text);
  void add(std::span<const std::byte> bytes);
  std::string hex() const;  // 16 digits

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace ebb
