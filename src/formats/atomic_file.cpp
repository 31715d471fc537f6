#include "formats/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace fs = std::filesystem;

namespace {

// write(2) holds a lock on the file and cannot be interrupted half-way on most file systems:
// a bound keeps the process answering to signals while it saves gigabytes.
constexpr size_t kMaxWriteBytes = size_t{64} << 20;

// Sweepers and signals can each cost one; a directory of the temporary's name costs them all.
constexpr int kMaxAttempts = 100;

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// What failed, in the user's words, with the remedy that this error number calls for.
[[noreturn]] void fail_on_disk(const fs::path& path, const char* doing, int error) {
  const std::string where = printable(path.string());
  const std::string directory = printable(directory_of(path).string());
  if (error == ENOSPC || error == EDQUOT) {
    fail(Exit::disk, fmt::format("{}: {}: disk full ({})", where, doing, std::strerror(error)),
         fmt::format("free some space for {} or choose another disk", directory));
  }
  std::string hint = fmt::format("check that {} exists and can be written", directory);
  if (error == EEXIST || error == ENOTDIR || error == EISDIR) {
    hint = "choose another path, or move away what is there";
  }
  if (error == EFBIG) hint = "raise the file size limit (ulimit -f) or choose another file system";
  if (error == EIO) hint = "the disk reports an error: choose another one";
  fail(Exit::disk, fmt::format("{}: {}: {}", where, doing, std::strerror(error)), hint);
}

int fsync_whole(int fd) {
  int result;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  return result;
}

int open_directory(const fs::path& directory) {
  return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void lock_whole(int fd) {
  while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
  }
}

// Makes a rename or mkdir in the directory durable. A directory that cannot be opened for reading,
// or a file system that cannot sync directories, leaves nothing more to do.
void sync_directory(const fs::path& directory) {
  const int fd = open_directory(directory);
  if (fd < 0) return;
  const int error = fsync_whole(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL && error != ENOTSUP && error != EROFS) {
    fail_on_disk(directory, "sync of the directory", error);
  }
}

// ".NAME.<digits>.tmp" with a NAME, as AtomicFile makes them; another program's ".x.tmp" stays.
// `of`: the NAME that is meant; empty: any.
bool is_temporary_name(std::string_view name, std::string_view of) {
  constexpr std::string_view kEnd = ".tmp";
  if (name.size() <= kEnd.size() || name[0] != '.' || !name.ends_with(kEnd)) return false;
  name.remove_suffix(kEnd.size());
  const size_t dot = name.rfind('.');
  const std::string_view digits = name.substr(dot + 1);
  if (dot == std::string_view::npos || (!of.empty() && name.substr(1, dot - 1) != of)) return false;
  return dot >= 2 && !digits.empty() &&
         std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

AtomicFile::AtomicFile(fs::path target, Temporary temporary) : target_(std::move(target)) {
  struct stat status;
  std::error_code error;
  if (::lstat(target_.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
    if (fs::path real = fs::canonical(target_, error); !error) target_ = std::move(real);
  }
  if (::stat(target_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    fail(Exit::disk,
         fmt::format("{}: found a {}, wanted a regular file or a new name",
                     printable(target_.string()),
                     S_ISDIR(status.st_mode) ? "directory" : "device or pipe"),
         "choose another output path");
  }
  if (!target_.has_filename()) give_up("open", EISDIR);
  const std::string name =
      fmt::format(".{}.{}.tmp", target_.filename().string(), static_cast<long>(::getpid()));
  temporary_ = directory_of(target_) / name;
  if (temporary == Temporary::named || !open_nameless()) open_named();
}

AtomicFile::~AtomicFile() { discard(); }

namespace {

// Through which a file without a name is given one.
std::string link_to(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

}  // namespace

bool AtomicFile::open_nameless() {
  do {
    fd_ = ::open(directory_of(target_).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) return false;  // the named one says why, if that cannot be opened either
  if (::access(link_to(fd_).c_str(), F_OK) == 0) {
    lock_whole(fd_);  // for the moment between its name and the target's
    return true;
  }
  ::close(fd_);
  fd_ = -1;
  return false;
}

void AtomicFile::open_named() {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    // A killed process can have had our pid (in a container it mostly had), so its leftover is
    // replaced. O_EXCL then makes sure that no planted link is followed.
    ::unlink(temporary_.c_str());
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) {
      if (errno == EINTR || errno == EEXIST) continue;
      give_up("open", errno);
    }
    has_name_ = true;
    // The lock tells remove_stale_temporaries that this file has an owner. One that swept between
    // open and flock has unlinked the file: start again. No locks on this file system: go without.
    struct stat status;
    lock_whole(fd_);
    if (::fstat(fd_, &status) == 0 && status.st_nlink > 0) return;
    ::close(fd_);
    fd_ = -1;
    has_name_ = false;
  }
  give_up("open of a temporary beside it", EEXIST);
}

// rename(2) can replace a target and linkat(2) cannot, so the way to the one leads over the other.
void AtomicFile::give_name() {
  for (int attempt = 0; attempt < kMaxAttempts && !has_name_; ++attempt) {
    ::unlink(temporary_.c_str());
    has_name_ = ::linkat(AT_FDCWD, link_to(fd_).c_str(), AT_FDCWD, temporary_.c_str(),
                         AT_SYMLINK_FOLLOW) == 0;
    if (!has_name_ && errno != EINTR && errno != EEXIST) give_up("link", errno);
  }
  if (!has_name_) give_up("link of a temporary beside it", EEXIST);
}

void AtomicFile::discard() noexcept {
  if (fd_ < 0) return;
  if (has_name_) ::unlink(temporary_.c_str());
  ::close(fd_);
  fd_ = -1;
}

void AtomicFile::give_up(const char* doing, int error) {
  discard();
  fail_on_disk(target_, doing, error);
}

void AtomicFile::write(const void* data, size_t bytes) {
  require(fd_ >= 0, "AtomicFile {}: write after commit or failure", target_.string());
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, from, std::min(bytes, kMaxWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) give_up("write", errno);
    if (written == 0) give_up("write", ENOSPC);
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::rewrite(size_t offset, std::string_view text) {
  require(fd_ >= 0, "AtomicFile {}: rewrite after commit or failure", target_.string());
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd_, text.data(), text.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) give_up("write", errno);
    if (written == 0) give_up("write", ENOSPC);
    text.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  require(fd_ >= 0, "AtomicFile {}: commit after commit or failure", target_.string());
  if (fsync_whole(fd_) != 0) give_up("sync", errno);
  give_name();
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) give_up("rename", errno);
  // Closed only now: until the rename the lock protects the temporary. fsync has already reported
  // whatever close could.
  ::close(fd_);
  fd_ = -1;
  sync_directory(directory_of(target_));
}

void check_writable(const fs::path& path) { const AtomicFile opened(path); }

void write_file_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

DirectoryLock::DirectoryLock(const fs::path& directory) : fd_(open_directory(directory)) {
  if (fd_ >= 0) lock_whole(fd_);
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

void remove_stale_temporaries(const fs::path& directory, std::string_view of) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const fs::path path = entry->path();
    if (!is_temporary_name(path.filename().string(), of)) continue;
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat status;
    const bool is_file = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    if (is_file && ::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
    ::close(fd);
  }
}

void make_directories(const fs::path& directory) {
  fs::path made;
  for (const fs::path& part : directory) {
    made /= part;
    if (::mkdir(made.c_str(), 0777) == 0) {
      sync_directory(directory_of(made));
      continue;
    }
    const int error = errno;
    std::error_code ignored;
    if (fs::is_directory(made, ignored)) continue;
    if (error == EEXIST) {
      fail(Exit::disk,
           fmt::format("{}: create the directory: a file of that name is there",
                       printable(made.string())),
           "choose another path, or move the file away");
    }
    fail_on_disk(made, "create the directory", error);
  }
}

}  // namespace ebb
