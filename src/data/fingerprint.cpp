#include "data/fingerprint.h"

#include <fmt/format.h>

#include <new>

namespace ebb {

Fingerprint::Fingerprint(std::string_view kind) : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
  add(kind);
}

void Fingerprint::add(int64_t number) { XXH3_64bits_update(state_.get(), &number, sizeof(number)); }

void Fingerprint::add(std::string_view text) { add(std::as_bytes(std::span(text))); }

void Fingerprint::add(std::span<const std::byte> bytes) {
  add(static_cast<int64_t>(bytes.size()));
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

std::string Fingerprint::hex() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(state_.get()));
}

}  // namespace ebb
