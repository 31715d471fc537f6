// What a run says while it trains: log.jsonl, and a line for the person who watches.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

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

// On a terminal one line that is rewritten; elsewhere a plain line every `every` steps.
class Progress {
 public:
  Progress(int64_t steps, int64_t every);
  ~Progress();
  void show(const StepRecord& record);
  // A line of its own, without breaking the one that is rewritten.
  void say(const std::string& line);

 private:
  void clear();
  int64_t steps_, every_;
  bool terminal_, open_ = false;
  double mean_seconds_ = 0;
};

}  // namespace ebb
