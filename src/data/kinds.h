// The kinds of sources behind open_source, each in a file of its own, and what they share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/source.h"

namespace ebb {

// `labels` may be empty: no classes.
std::unique_ptr<Source> open_idx(const std::filesystem::path& images,
                                 const std::filesystem::path& labels, const SourceOptions& options);
std::unique_ptr<Source> open_features(const std::filesystem::path& features,
                                      const std::filesystem::path& labels,
                                      const SourceOptions& options);
std::unique_ptr<Source> open_images(const std::filesystem::path& folder,
                                    const SourceOptions& options);

inline constexpr int64_t kMaxClasses = 1'000'000;
// Of so many images, how many may be undecodable: one in a hundred is what scraping the web leaves
// behind, more is a damaged set. In a small folder up to three are that too, unless they are over a
// tenth of it: of ten pictures two damaged ones are worth a look.
constexpr int64_t most_bad_images(int64_t count) {
  return std::max(count / 100, std::min<int64_t>(3, count / 10));
}

inline constexpr int64_t kVerifyFiles = 20'000;  // more are not decoded on opening

// For what is no data of any kind.
inline constexpr const char* kLayoutsHint =
    "wanted one of: a folder with a sub-folder of images for each class; a folder of "
    "images; NAME_features/{0,1,..}.npy with NAME_labels/{0,1,..}.npy; "
    "train-images-idx3-ubyte[.gz] with train-labels-idx1-ubyte[.gz]";

// Images have 1 or 3 channels; 0 takes the data's.
void check_pixel_channels(const SourceOptions& options);

// Calls `visit` for every entry that is not hidden, in no order. Fails with Exit::data.
void each_entry(const std::filesystem::path& folder,
                const std::function<void(const std::filesystem::directory_entry&)>& visit);

// "a, b, c". fmt::join makes GCC 12 warn at -O3.
std::string joined(const std::vector<std::string>& parts, const char* separator);

// The path, harmless for a terminal.
std::string shown(const std::filesystem::path& path);

}  // namespace ebb
