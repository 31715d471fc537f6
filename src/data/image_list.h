// The image files of a folder, in an order that depends on their names alone, held compactly: about
// 20 bytes and its name for each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "formats/image.h"

namespace ebb {

class ImageList {
 public:
  // Lists without opening any file. Sub-folders are classes, sorted by name, and may have folders
  // of their own; a folder without them has no classes. A folder that several links lead to is
  // listed once: where it lies, if that is among what is listed, else at the first link by name.
  // Fails with Exit::data when there are no images, or when their names would take more than
  // `memory_limit` bytes.
  ImageList(const std::filesystem::path& folder, int64_t memory_limit);

  int64_t size() const { return std::ssize(items_); }
  std::filesystem::path path(int64_t index) const;
  // Relative to its class's folder.
  std::string_view name(int64_t index) const { return names_.data() + items_[index].name; }
  int32_t label(int64_t index) const { return items_[index].label; }
  ImageInfo info(int64_t index) const;
  // An info of width 0 unsets it.
  void set_info(int64_t index, const ImageInfo& info);

  // Removes the items whose info is not set.
  void drop_unset();

  const std::vector<std::string>& classes() const { return classes_; }  // names as on the disk
  const std::vector<std::string>& notes() const { return notes_; }
  int64_t held_bytes() const;

 private:
  class Walk;
  struct Item {
    uint32_t name = 0;  // where it begins in names_
    int32_t label = 0;
    uint32_t file_bytes = 0;
    uint16_t width = 0, height = 0;  // 0: not set
    uint8_t channels = 0;
    ImageKind kind = ImageKind::png;
    uint8_t orientation = 1;
    bool whole = false;
  };
  void add(std::string_view name, int32_t label);
  // Sorts by class and name. Folders without images are no classes; returns how many there are.
  int64_t settle(std::vector<std::string> folders);

  std::filesystem::path folder_;
  int64_t memory_limit_;
  std::string names_;  // relative to their class's folder, each ended by a zero byte
  std::vector<Item> items_;
  std::vector<std::string> classes_;
  std::vector<std::string> notes_;
};

}  // namespace ebb
