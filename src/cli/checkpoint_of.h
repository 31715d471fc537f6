// Which checkpoint a user names.
#pragma once

#include <filesystem>
#include <string>

namespace ebb {

// --from: a file, or the newest checkpoint of a run's folder. Neither is Exit::disk.
std::filesystem::path checkpoint_of(const std::string& from);

}  // namespace ebb
