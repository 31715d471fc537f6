// The folder of a run: one process at a time, and nothing in it is lost that someone has made.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "state/checkpoint.h"

namespace ebb {

// The checkpoint that a run goes on from: of this step, or the newest. Fails with Exit::disk where
// there is none.
StoredCheckpoint resumed_checkpoint(const std::filesystem::path& run, std::optional<int64_t> step);

// That error again; where the run has a checkpoint before this one, the hint names it.
[[noreturn]] void fail_naming_earlier(const Error& error, const std::filesystem::path& run,
                                      const StoredCheckpoint& damaged);

class RunFolder {
 public:
  struct Start {
    bool resume = false;
    std::optional<int64_t> step;  // resume from the checkpoint of this step instead of the newest
  };

  // Makes a new run's folder and locks it while this lives; a folder that nothing was put into goes
  // again. Fails with Exit::disk when another
  // process has it, or when there is nothing to resume from; with Exit::usage when a new run finds
  // one there, or files of somebody else under the names that it would write.
  RunFolder(std::filesystem::path path, const Start& start);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // What to resume from.
  const std::optional<StoredCheckpoint>& checkpoint() const { return checkpoint_; }

  // Makes it ready for writing, with these settings. What a run without checkpoints has left, and
  // checkpoints after the one that is resumed from, are given other names; a line on each.
  std::vector<std::string> open(const std::string& settings, bool pictures);
  void write_settings(const std::string& settings) const;

 private:
  void lock();
  void choose(const Start& start);
  void check_new() const;
  void move(const std::filesystem::path& from, const std::filesystem::path& to,
            std::vector<std::string>& notes) const;
  void set_aside_newer(std::vector<std::string>& notes) const;
  void set_aside_logs(std::vector<std::string>& notes) const;

  std::filesystem::path path_;
  std::optional<StoredCheckpoint> checkpoint_;
  bool made_ = false;
  int lock_ = -1;
};

}  // namespace ebb
