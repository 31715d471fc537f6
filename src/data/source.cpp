#include "data/source.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "data/kinds.h"
#include "formats/image.h"

namespace ebb {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFeatures = "_features";
constexpr std::string_view kLabels = "_labels";

// "train-images-idx3-ubyte.gz" -> "train-labels-idx1-ubyte"; nothing for other names.
std::optional<std::string> idx_labels_name(std::string name) {
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  for (const char* separator : {"-", "."}) {
    const std::string tail = fmt::format("images{}idx3-ubyte", separator);
    if (!name.ends_with(tail)) continue;
    name.resize(name.size() - tail.size());
    return name + fmt::format("labels{}idx1-ubyte", separator);
  }
  return std::nullopt;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::unique_ptr<Source> open_idx_pair(const fs::path& images, const std::string& labels_name,
                                      const SourceOptions& options) {
  const fs::path plain = images.parent_path() / labels_name;
  const fs::path packed = images.parent_path() / (labels_name + ".gz");
  return open_idx(images, is_file(plain) ? plain : is_file(packed) ? packed : fs::path(), options);
}

// `found`: labels name -> images file, one for each set in the folder.
std::unique_ptr<Source> open_idx_folder(const fs::path& folder,
                                        std::map<std::string, fs::path> found,
                                        const SourceOptions& options) {
  if (found.size() > 1) {
    std::vector<std::string> names;
    for (const auto& [labels, images] : found) names.push_back(shown(images.filename()));
    std::erase_if(found, [](const auto& set) { return !set.first.starts_with("train"); });
    if (found.size() != 1) {
      fail(
          Exit::data,
          fmt::format("{}: found several IDX sets ({}), wanted one, or one that begins with train-",
                      shown(folder), joined(names, ", ")),
          "give the path of the images file itself");
    }
  }
  return open_idx_pair(found.begin()->second, found.begin()->first, options);
}

// `features` is NAME_features; labels are in NAME_labels beside it.
std::unique_ptr<Source> open_features_pair(const fs::path& features, const SourceOptions& options) {
  std::string name = features.filename().string();
  fs::path labels;
  if (name.ends_with(kFeatures)) {
    name.resize(name.size() - kFeatures.size());
    labels = features.parent_path() / (name + std::string(kLabels));
  }
  return open_features(features, is_folder(labels) ? labels : fs::path(), options);
}

bool has_npy(const fs::path& folder) {
  bool found = false;
  each_entry(folder, [&](const fs::directory_entry& entry) {
    found = found || entry.path().extension() == ".npy";
  });
  return found;
}

std::unique_ptr<Source> open_folder(const fs::path& folder, const SourceOptions& options) {
  std::map<std::string, fs::path> idx_sets;
  std::vector<fs::path> features;
  bool npy = false;
  each_entry(folder, [&](const fs::directory_entry& entry) {
    const fs::path& path = entry.path();
    const std::string name = path.filename().string();
    if (const auto labels = idx_labels_name(name); labels && is_file(path)) {
      fs::path& images = idx_sets[*labels];
      if (images.empty() || path.extension() != ".gz") images = path;
    } else if (name.ends_with(kFeatures) && is_folder(path) && has_npy(path)) {
      features.push_back(path);
    }
    npy = npy || path.extension() == ".npy";
  });
  if (!idx_sets.empty()) return open_idx_folder(folder, std::move(idx_sets), options);
  if (features.size() > 1) {
    std::sort(features.begin(), features.end());
    fail(Exit::data,
         fmt::format("{}: found {} and {}, wanted one folder of features", shown(folder),
                     shown(features[0].filename()), shown(features[1].filename())),
         "give the path of the features folder itself");
  }
  if (features.size() == 1) return open_features_pair(features[0], options);
  if (npy) return open_features_pair(folder, options);
  return open_images(folder, options);
}

}  // namespace

std::unique_ptr<Source> open_source(const fs::path& path, const SourceOptions& options) {
  if (options.image_size < 0 || options.image_size > kMaxImageSide) {
    fail(Exit::usage,
         fmt::format("--image-size: found {}, wanted 1 to {}", options.image_size, kMaxImageSide));
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    fail(Exit::data, fmt::format("{}: found nothing there, wanted training data", shown(path)),
         kLayoutsHint);
  }
  if (error) {
    fail(Exit::data, fmt::format("{}: cannot be read: {}", shown(path), error.message()),
         "check the permissions of the folder and of those above it");
  }
  // "data/" and "data/." name the folder "data" too; its own name tells features from others.
  fs::path clean = fs::absolute(path, error).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  if (fs::is_directory(status)) return open_folder(clean, options);
  if (const auto labels = idx_labels_name(clean.filename().string()); labels && is_file(clean)) {
    return open_idx_pair(clean, *labels, options);
  }
  fail(Exit::data,
       fmt::format("{}: found a file that is no data set, wanted a folder", shown(path)),
       kLayoutsHint);
}

void check_pixel_channels(const SourceOptions& options) {
  if (options.channels == 0 || options.channels == 1 || options.channels == 3) return;
  fail(Exit::usage, fmt::format("--channels: found {}, wanted 1 or 3 for images", options.channels),
       "leave it out: it is read from the data");
}

void each_entry(const fs::path& folder,
                const std::function<void(const fs::directory_entry&)>& visit) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!entry->path().filename().string().starts_with('.')) visit(*entry);
  }
  if (error) {
    fail(Exit::data,
         fmt::format("{}: the folder cannot be read: {}", shown(folder), error.message()),
         "check its permissions");
  }
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string shown(const fs::path& path) { return printable(path.string()); }

}  // namespace ebb
