// The memory of a set of plans: an arena, and a file where they keep something there.
#pragma once

#include <optional>

#include "plan/plan.h"
#include "run/arena.h"
#include "run/disk_store.h"

namespace ebb {

class RunMemory {
 public:
  // The directory is for the file. Fails as Arena and DiskStore do.
  RunMemory(const PlanSet& plans, const std::filesystem::path& directory);

  const Arena& arena() const { return arena_; }
  std::byte* data() const { return arena_.data(); }                         // of the arena
  operator Memory() { return {arena_.data(), disk_ ? &*disk_ : nullptr}; }  // NOLINT: it is one

 private:
  const Arena arena_;
  std::optional<DiskStore> disk_;
};

}  // namespace ebb
