#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "formats/atomic_file.h"

namespace ebb {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSettings = "settings.toml";
constexpr const char* kLog = "log.jsonl";
constexpr const char* kPictures = "samples";

bool begins_with(const fs::path& path, std::string_view wanted) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  std::string found(wanted.size(), '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(found.data(), static_cast<std::streamsize>(found.size()));
  return in.gcount() == std::ssize(wanted) && found == wanted;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool has_nothing(const fs::path& path) {
  std::error_code ignored;
  return fs::is_empty(path, ignored);
}

bool is_own_log(const fs::path& path) {
  return has_nothing(path) || begins_with(path, "{\"step\":");
}
bool is_own_settings(const fs::path& path) { return begins_with(path, "# ebb "); }

// ", process 1234", from the system's list of locks; nothing where it does not say.
std::string holder_of(int fd) {
  struct stat status;
  std::ifstream locks("/proc/locks");
  if (::fstat(fd, &status) != 0) return "";
  const std::string inode = fmt::format(":{}", status.st_ino);
  // "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"
  for (std::string number, kind, mode, access, pid, place, rest;
       locks >> number >> kind >> mode >> access >> pid >> place && std::getline(locks, rest);) {
    if (kind == "FLOCK" && place.ends_with(inode)) return ", process " + printable(pid);
  }
  return "";
}

}  // namespace

StoredCheckpoint resumed_checkpoint(const fs::path& run, std::optional<int64_t> step) {
  const auto found = checkpoints_of(run);
  if (found.empty()) {
    fail(Exit::disk, fmt::format("--resume: no checkpoint in {}", (run / "checkpoints").string()),
         "give the --out of an earlier run, or leave --resume out");
  }
  if (!step) return found.back();
  std::vector<int64_t> steps;
  for (const StoredCheckpoint& each : found) {
    if (each.step == *step) return each;
    steps.push_back(each.step);
  }
  fail(Exit::disk,
       fmt::format("--resume-step: no checkpoint of step {} in {}", *step,
                   (run / "checkpoints").string()),
       fmt::format("there are those of {}", fmt::join(steps, ", ")));
}

void fail_naming_earlier(const Error& error, const fs::path& run, const StoredCheckpoint& damaged) {
  std::optional<StoredCheckpoint> before;
  for (const StoredCheckpoint& each : checkpoints_of(run)) {
    if (each.step < damaged.step) before = each;
  }
  if (!before) throw error;
  fail(error.code(), error.what(),
       fmt::format("--resume-step {} goes on from the checkpoint before it, {}; this one is kept "
                   "under another name",
                   before->step, before->path.filename().string()));
}

RunFolder::RunFolder(fs::path path, const Start& start) : path_(std::move(path)) {
  made_ = !start.resume && !is_there(path_);
  if (!start.resume) make_directories(path_);
  lock();
  choose(start);
  if (!start.resume) check_new();
}

RunFolder::~RunFolder() {
  std::error_code ignored;  // only what is empty can be removed like this
  if (made_) fs::remove(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

// A folder that is not there has nothing to lock; a file system without locks goes without.
void RunFolder::lock() {
  lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) return;
  int result;
  do {
    result = ::flock(lock_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno != EWOULDBLOCK) return;
  const std::string holder = holder_of(lock_);
  ::close(lock_);
  lock_ = -1;
  fail(Exit::disk,
       fmt::format("--out: {} is in use by another run{}", printable(path_.string()), holder),
       "wait for it, stop it, or choose another --out");
}

void RunFolder::choose(const Start& start) {
  if (start.resume) {
    checkpoint_ = resumed_checkpoint(path_, start.step);
    return;
  }
  const auto found = checkpoints_of(path_);
  if (found.empty()) return;
  fail(Exit::usage,
       fmt::format("--out: {} already holds a run ({})", path_.string(),
                   found.back().path.filename().string()),
       "--resume goes on with it; another --out starts afresh");
}

// A run that ended before its first checkpoint has left files that a new one may put aside; those
// of others are theirs.
void RunFolder::check_new() const {
  const auto refuse = [&](const char* name) {
    fail(Exit::usage,
         fmt::format("--out: {} is not of an Ebb run, and would be written over",
                     (path_ / name).string()),
         "choose another --out, or move that file away");
  };
  if (is_there(path_ / kSettings) && !is_own_settings(path_ / kSettings)) refuse(kSettings);
  if (is_there(path_ / kLog) && !is_own_log(path_ / kLog)) refuse(kLog);
}

void RunFolder::move(const fs::path& from, const fs::path& to,
                     std::vector<std::string>& notes) const {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    fail(Exit::disk, fmt::format("{}: cannot be renamed: {}", from.string(), error.message()),
         "move it away, or choose another --out");
  }
  notes.push_back(
      fmt::format("kept: {} is now {}", from.filename().string(), to.filename().string()));
}

// Left under their names, they would count as the newest: the next to be resumed from, and those
// that --keep keeps.
void RunFolder::set_aside_newer(std::vector<std::string>& notes) const {
  for (const StoredCheckpoint& each : checkpoints_of(path_)) {
    if (!checkpoint_ || each.step <= checkpoint_->step) continue;
    fs::path to;
    for (int n = 1; to.empty() || is_there(to); ++n) {
      to = each.path;
      to += fmt::format(".aside-{}", n);
    }
    move(each.path, to, notes);
  }
}

void RunFolder::set_aside_logs(std::vector<std::string>& notes) const {
  struct Item {
    const char *stem, *end;
    bool leaves;
  };
  const bool new_run = !checkpoint_;
  const Item items[] = {
      {"settings", ".toml", new_run && is_there(path_ / kSettings)},
      {"log", ".jsonl",
       is_there(path_ / kLog) &&
           (new_run ? !has_nothing(path_ / kLog) : !is_own_log(path_ / kLog))},
      {"samples", "", new_run && is_there(path_ / kPictures) && !has_nothing(path_ / kPictures)}};
  const auto named = [&](const Item& item, int n) {
    return path_ / fmt::format("{}-{}{}", item.stem, n, item.end);
  };
  int n = 1;  // one number for all that leaves together
  const auto taken = [&] {
    return std::any_of(std::begin(items), std::end(items),
                       [&](const Item& item) { return is_there(named(item, n)); });
  };
  while (taken()) ++n;
  for (const Item& item : items) {
    if (item.leaves) move(path_ / fmt::format("{}{}", item.stem, item.end), named(item, n), notes);
  }
}

std::vector<std::string> RunFolder::open(const std::string& settings, bool pictures) {
  std::vector<std::string> notes;
  set_aside_newer(notes);
  set_aside_logs(notes);
  make_directories(path_ / "checkpoints");
  if (pictures) make_directories(path_ / kPictures);
  for (const auto& folder : {path_, path_ / "checkpoints", path_ / kPictures}) {
    remove_stale_temporaries(folder);
  }
  write_settings(settings);
  return notes;
}

void RunFolder::write_settings(const std::string& settings) const {
  write_file_atomically(path_ / kSettings, settings);
}

}  // namespace ebb
