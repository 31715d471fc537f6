// Files that survive a kill, a full disk or a power cut: the old content or the new, never a half.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace ebb {

// A file that appears under its name complete and durable, or not at all. The bytes go to a file
// without a name in the target's directory, of which a killed process leaves nothing; commit()
// names it ".NAME.<pid>.tmp" and renames that over the target. Where the file system knows no
// nameless files, or /proc is not there to name them through, it has that name from the beginning.
//
// Every failure is Exit::disk and leaves no temporary. A target that exists must be a regular file
// (never a device: renaming over /dev/null would destroy it) or a link to one, which is followed.
// Not thread safe; one AtomicFile at a time for one target in one process.
class AtomicFile {
 public:
  enum class Temporary { nameless, named };  // what is tried first
  explicit AtomicFile(std::filesystem::path target, Temporary temporary = Temporary::nameless);
  ~AtomicFile();  // not committed: the temporary is removed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Straight from the caller's memory, no copy is kept.
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

  // Over bytes that were written before: for what is known only at the end.
  void rewrite(size_t offset, std::string_view text);

  // fsync, rename, fsync of the directory. Nothing may be written after it.
  void commit();

 private:
  bool open_nameless();
  void open_named();
  void give_name();
  void discard() noexcept;
  [[noreturn]] void give_up(const char* doing, int error);

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool has_name_ = false;  // the temporary
  int fd_ = -1;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Fails as AtomicFile would, before hours are spent on what is to be written. Leaves nothing
// behind.
void check_writable(const std::filesystem::path& path);

// While it lives no other process holds one of the same directory: for files that several programs
// read, change and write back. It waits for its turn, leaves nothing behind, and a directory that
// is not there or cannot be locked is gone without.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_;
};

// Removes the temporaries that a killed process left in a directory: all, or those of the file of
// one name. Those that a living AtomicFile writes, here or in another process, are locked and stay.
// A missing directory has none.
void remove_stale_temporaries(const std::filesystem::path& directory, std::string_view of = "");

// Creates the directory and its parents, durably; an existing one is fine. A failure is Exit::disk
// naming the path.
void make_directories(const std::filesystem::path& directory);

}  // namespace ebb
