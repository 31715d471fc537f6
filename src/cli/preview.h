// One picture of what the network sees of a data set.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/source.h"

namespace ebb {

// Writes a grid of up to 64 samples, spread over the classes and over the samples of each; with
// few classes, a row for each. Returns a line for each sample that cannot be shown. Fails with
// Exit::usage where samples are no pictures or the path is no .png, with Exit::disk in writing.
std::vector<std::string> write_preview(const std::filesystem::path& path, const Source& source);

}  // namespace ebb
