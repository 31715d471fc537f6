#include "data/image_list.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "data/kinds.h"

namespace ebb {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxDepth = 4;  // below a class's folder; also ends loops of symbolic links

bool named_like_an_image(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_directory(ignored);
}

// A whole data set given instead of its training part would make two classes, train and val.
void refuse_splits(const fs::path& folder, const std::vector<std::string>& classes) {
  static const std::vector<std::string> kSplits = {"test", "train", "val", "valid", "validation"};
  const bool splits = std::includes(kSplits.begin(), kSplits.end(), classes.begin(), classes.end());
  if (!splits || !std::binary_search(classes.begin(), classes.end(), "train")) return;
  fail(
      Exit::data,
      fmt::format("{}: found the parts of a data set (train and others), wanted folders of classes",
                  shown(folder)),
      fmt::format("give {}", shown(folder / "train")));
}

}  // namespace

ImageList::ImageList(const fs::path& folder, int64_t memory_limit)
    : folder_(folder), memory_limit_(memory_limit) {
  std::vector<std::string> folders, loose;
  int64_t others = 0;
  each_entry(folder, [&](const fs::directory_entry& entry) {
    std::string name = entry.path().filename().string();
    if (is_folder(entry)) {
      folders.push_back(std::move(name));
    } else if (named_like_an_image(entry.path())) {
      loose.push_back(std::move(name));
    } else {
      ++others;
    }
  });
  std::sort(folders.begin(), folders.end());
  if (!folders.empty()) refuse_splits(folder, folders);

  int64_t empty = 0;
  for (std::string& name : folders) {
    const size_t first = items_.size();
    if (std::ssize(classes_) == kMaxClasses) {
      fail(Exit::data, fmt::format("{}: found more than {} folders, wanted one for each class",
                                   shown(folder), kMaxClasses));
    }
    scan(folder / name, "", static_cast<int32_t>(classes_.size()), 0);
    sort_from(first);
    if (items_.size() > first) {
      classes_.push_back(std::move(name));
    } else {
      ++empty;
    }
  }
  if (classes_.empty()) {
    for (const std::string& name : loose) add(name, 0);
    sort_from(0);
  } else if (!loose.empty()) {
    notes_.push_back(fmt::format("{}: ignored {} image{} beside the folders of the classes",
                                 shown(folder), loose.size(), loose.size() == 1 ? "" : "s"));
  }
  if (items_.empty()) {
    fail(
        Exit::data,
        fmt::format("{}: found {} folder{} and {} other file{} but no image", shown(folder),
                    folders.size(), folders.size() == 1 ? "" : "s", others, others == 1 ? "" : "s"),
        kLayoutsHint);
  }
  if (empty > 0) {
    notes_.push_back(fmt::format("{}: ignored {} folder{} without images", shown(folder), empty,
                                 empty == 1 ? "" : "s"));
  }
  names_.shrink_to_fit();
  items_.shrink_to_fit();
}

void ImageList::scan(const fs::path& folder, const std::string& prefix, int32_t label, int depth) {
  each_entry(folder, [&](const fs::directory_entry& entry) {
    const std::string name = prefix + entry.path().filename().string();
    if (is_folder(entry)) {
      if (depth < kMaxDepth) scan(entry.path(), name + '/', label, depth + 1);
    } else if (named_like_an_image(entry.path())) {
      add(name, label);
    }
  });
}

void ImageList::add(const std::string& name, int32_t label) {
  const int64_t limit = std::min<int64_t>(memory_limit_, std::numeric_limits<uint32_t>::max());
  if (held_bytes() + std::ssize(name) >= limit) {
    fail(Exit::data,
         fmt::format("{}: found more than {} images, whose names take over {}", shown(folder_),
                     items_.size(), format_size(limit)),
         "raise --memory or train on fewer images");
  }
  Item& item = items_.emplace_back();
  item.name = static_cast<uint32_t>(names_.size());
  item.label = label;
  names_ += name;
  names_ += '\0';
}

void ImageList::sort_from(size_t first) {
  std::sort(items_.begin() + static_cast<ptrdiff_t>(first), items_.end(),
            [this](const Item& a, const Item& b) {
              return std::strcmp(names_.data() + a.name, names_.data() + b.name) < 0;
            });
}

fs::path ImageList::path(int64_t index) const {
  const Item& item = items_[index];
  const char* name = names_.data() + item.name;
  return classes_.empty() ? folder_ / name : folder_ / classes_[item.label] / name;
}

ImageInfo ImageList::info(int64_t index) const {
  const Item& item = items_[index];
  return {item.width, item.height, item.channels, item.kind, item.whole};
}

void ImageList::set_info(int64_t index, const ImageInfo& info) {
  static_assert(kMaxImageSide <= std::numeric_limits<uint16_t>::max());
  Item& item = items_[index];
  item.width = static_cast<uint16_t>(info.width);
  item.height = static_cast<uint16_t>(info.height);
  item.channels = static_cast<uint8_t>(info.channels);
  item.kind = info.kind;
  item.whole = info.whole;
}

void ImageList::drop_unset() {
  std::erase_if(items_, [](const Item& item) { return item.width == 0; });
}

int64_t ImageList::held_bytes() const {
  return static_cast<int64_t>(names_.size() + items_.size() * sizeof(Item));
}

}  // namespace ebb
