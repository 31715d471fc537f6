// The one allocation: mapped once, every page touched at once, never grown.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ebb {

class Arena {
 public:
  // Fails with Exit::budget when the system refuses the bytes.
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int64_t resident_bytes() const;  // pages of it that are in memory, as the system counts them

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace ebb
