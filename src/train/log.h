// What a run says while it trains: log.jsonl, and a line for the person who watches.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "train/status_line.h"

namespace ebb {

struct StepRecord {
  int64_t step;
  double loss, lr, grad_norm, seconds, images_per_second;
  int64_t arena_peak_bytes, process_peak_bytes;
  double loss_scale = 0;  // fp16: of this step; 0: none
  bool skipped = false;   // the gradient was not finite, and the update was not applied
};

// Appends one JSON object a line, each written whole.
class JsonLog {
 public:
  // Lines of steps after `last_step` are cut off: a resumed run writes them again.
  JsonLog(const std::filesystem::path& path, int64_t last_step);
  ~JsonLog();
  JsonLog(const JsonLog&) = delete;
  JsonLog& operator=(const JsonLog&) = delete;
  void write(const StepRecord& record);

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

// How far the run is: on a terminal one line that is rewritten; elsewhere a plain line at the first
// step, every `every` steps, at the last, and in between so that no half minute passes without.
// `every` 0: nothing but on a terminal.
class Progress {
 public:
  // done: steps of an earlier run that this one goes on with.
  Progress(int64_t steps, int64_t done, int64_t every);
  void show(const StepRecord& record);
  // A line of its own, without breaking the one that is rewritten.
  void say(const std::string& line) { line_.say(line); }
  StatusLine& line() { return line_; }  // for what is shown in its place meanwhile

 private:
  int64_t steps_, done_, every_;
  std::chrono::steady_clock::time_point start_;
  Cadence cadence_;
  StatusLine line_;
};

}  // namespace ebb
