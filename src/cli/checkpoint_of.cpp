#include "cli/checkpoint_of.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "state/checkpoint.h"

namespace ebb {

std::filesystem::path checkpoint_of(const std::string& from) {
  std::error_code ignored;
  if (!std::filesystem::exists(from, ignored)) {
    fail(Exit::disk, fmt::format("--from: {} does not exist", printable(from)),
         "give a run's folder");
  }
  if (!std::filesystem::is_directory(from, ignored)) return from;
  if (const auto newest = newest_checkpoint(from)) return *newest;
  const std::filesystem::path folder = std::filesystem::path(from) / "checkpoints";
  fail(Exit::disk, fmt::format("--from: no checkpoint in {}", printable(folder.string())),
       "train with --save-every, or give the checkpoint's file");
}

}  // namespace ebb
