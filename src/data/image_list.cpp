#include "data/image_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "data/kinds.h"

namespace ebb {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxDepth = 32;  // below a class's folder
constexpr size_t kNamedFiles = 3;

bool named_like_an_image(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static const std::set<std::string> kRead = {".png",  ".jpg", ".jpeg", ".jpe", ".jfif",
                                              ".webp", ".gif", ".bmp",  ".dib"};
  return kRead.contains(extension);
}

std::string counted(int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
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

// A count with the first few names in alphabetical order, whatever order they come in.
class Tally {
 public:
  void add(const std::string& name) {
    ++count_;
    names_.insert(std::upper_bound(names_.begin(), names_.end(), name), name);
    if (names_.size() > kNamedFiles) names_.pop_back();
  }
  int64_t count() const { return count_; }
  // "a.txt, b.txt, c.txt and others"
  std::string text() const {
    std::vector<std::string> clean;
    for (const std::string& name : names_) clean.push_back(printable(name));
    return joined(clean, ", ") + (count_ > std::ssize(names_) ? " and others" : "");
  }

 private:
  int64_t count_ = 0;
  std::vector<std::string> names_;
};

}  // namespace

// Goes through the folders. Links to folders wait until all else is done, so that what they lead to
// stays where it lies; a folder is read once, however many ways there are to it.
class ImageList::Walk {
 public:
  explicit Walk(ImageList& list) : list_(list) { first_visit(list.folder_); }

  void enter(const std::string& name, int32_t label) {
    visit_or_wait({list_.folder_ / name, "", label, 0});
  }
  void follow_links() {
    for (size_t i = 0; i < links_.size(); ++i) {
      visit(Place(links_[i]));  // a copy: visiting may add to them
    }
  }
  void ignore(const std::string& name) { ignored_.add(name); }

  void tell(std::vector<std::string>& notes) const {
    const std::string where = shown(list_.folder_);
    if (ignored_.count() > 0) {
      notes.push_back(fmt::format("{}: ignored {} of kinds that Ebb does not read: {}", where,
                                  counted(ignored_.count(), "file"), ignored_.text()));
    }
    if (repeated_.count() > 0) {
      notes.push_back(fmt::format("{}: ignored {} to folders that are read already: {}", where,
                                  counted(repeated_.count(), "link"), repeated_.text()));
    }
    if (deep_.count() > 0) {
      notes.push_back(fmt::format("{}: ignored {} more than {} levels down: {}", where,
                                  counted(deep_.count(), "folder"), kMaxDepth, deep_.text()));
    }
  }
  int64_t ignored() const { return ignored_.count(); }

 private:
  struct Place {
    fs::path path;
    std::string prefix;  // what the names of its files begin with
    int32_t label;
    int depth;
  };

  bool first_visit(const fs::path& folder) {
    struct stat status = {};
    if (::stat(folder.c_str(), &status) != 0) return true;  // reading it will say why
    return seen_.emplace(status.st_dev, status.st_ino).second;
  }

  void visit_or_wait(Place place) {
    std::error_code ignored;
    if (fs::is_symlink(place.path, ignored)) {
      links_.push_back(std::move(place));
    } else {
      visit(place);
    }
  }

  void visit(const Place& place) {
    const std::string name = place.path.filename().string();
    if (place.depth > kMaxDepth) {
      deep_.add(name);
      return;
    }
    if (!first_visit(place.path)) {
      repeated_.add(name);
      return;
    }
    std::vector<std::string> folders;
    each_entry(place.path, [&](const fs::directory_entry& entry) {
      std::string entry_name = entry.path().filename().string();
      if (is_folder(entry)) {
        folders.push_back(std::move(entry_name));
      } else if (named_like_an_image(entry.path())) {
        list_.add(place.prefix + entry_name, place.label);
      } else {
        ignore(entry_name);
      }
    });
    std::sort(folders.begin(), folders.end());
    for (const std::string& folder : folders) {
      visit_or_wait(
          {place.path / folder, place.prefix + folder + '/', place.label, place.depth + 1});
    }
  }

  ImageList& list_;
  std::set<std::pair<dev_t, ino_t>> seen_;
  std::vector<Place> links_;
  Tally ignored_, repeated_, deep_;
};

ImageList::ImageList(const fs::path& folder, int64_t memory_limit)
    : folder_(folder), memory_limit_(memory_limit) {
  Walk walk(*this);
  std::vector<std::string> folders, loose;
  each_entry(folder, [&](const fs::directory_entry& entry) {
    std::string name = entry.path().filename().string();
    if (is_folder(entry)) {
      folders.push_back(std::move(name));
    } else if (named_like_an_image(entry.path())) {
      loose.push_back(std::move(name));
    } else {
      walk.ignore(name);
    }
  });
  std::sort(folders.begin(), folders.end());
  if (!folders.empty()) refuse_splits(folder, folders);
  for (size_t i = 0; i < folders.size(); ++i) walk.enter(folders[i], static_cast<int32_t>(i));
  walk.follow_links();

  const bool classes = !items_.empty();
  if (!classes) {
    for (const std::string& name : loose) add(name, 0);
  } else if (!loose.empty()) {
    notes_.push_back(fmt::format("{}: ignored {} beside the folders of the classes", shown(folder),
                                 counted(std::ssize(loose), "image")));
  }
  if (items_.empty()) {
    fail(Exit::data,
         fmt::format("{}: found {} and {} but no image", shown(folder),
                     counted(std::ssize(folders), "folder"), counted(walk.ignored(), "other file")),
         kLayoutsHint);
  }
  const int64_t empty =
      std::ssize(folders) - settle(classes ? folders : std::vector<std::string>());
  if (empty > 0) {
    notes_.push_back(
        fmt::format("{}: ignored {} without images", shown(folder), counted(empty, "folder")));
  }
  walk.tell(notes_);
  names_.shrink_to_fit();
  items_.shrink_to_fit();
}

int64_t ImageList::settle(std::vector<std::string> folders) {
  std::sort(items_.begin(), items_.end(), [this](const Item& a, const Item& b) {
    if (a.label != b.label) return a.label < b.label;
    return std::strcmp(names_.data() + a.name, names_.data() + b.name) < 0;
  });
  if (folders.empty()) return 0;
  int32_t last = -1;
  for (Item& item : items_) {
    if (item.label != last) {
      last = item.label;
      classes_.push_back(std::move(folders[static_cast<size_t>(last)]));
    }
    item.label = static_cast<int32_t>(classes_.size()) - 1;
  }
  if (std::ssize(classes_) > kMaxClasses) {
    fail(Exit::data, fmt::format("{}: found {} folders with images, wanted at most {} classes",
                                 shown(folder_), classes_.size(), kMaxClasses));
  }
  return std::ssize(classes_);
}

void ImageList::add(std::string_view name, int32_t label) {
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

fs::path ImageList::path(int64_t index) const {
  const Item& item = items_[index];
  const char* name = names_.data() + item.name;
  return classes_.empty() ? folder_ / name : folder_ / classes_[item.label] / name;
}

ImageInfo ImageList::info(int64_t index) const {
  const Item& item = items_[index];
  ImageInfo info;
  info.width = item.width;
  info.height = item.height;
  info.channels = item.channels;
  info.kind = item.kind;
  info.whole = item.whole;
  info.orientation = item.orientation;
  info.file_bytes = item.file_bytes;
  return info;
}

void ImageList::set_info(int64_t index, const ImageInfo& info) {
  static_assert(kMaxImageSide <= std::numeric_limits<uint16_t>::max());
  Item& item = items_[index];
  item.width = static_cast<uint16_t>(info.width);
  item.height = static_cast<uint16_t>(info.height);
  item.channels = static_cast<uint8_t>(info.channels);
  item.kind = info.kind;
  item.whole = info.whole;
  item.orientation = info.orientation;
  item.file_bytes = static_cast<uint32_t>(info.file_bytes);
}

void ImageList::drop_unset() {
  std::erase_if(items_, [](const Item& item) { return item.width == 0; });
}

int64_t ImageList::held_bytes() const {
  return static_cast<int64_t>(names_.size() + items_.size() * sizeof(Item));
}

}  // namespace ebb
