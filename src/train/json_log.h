// log.jsonl: a line for every step.
#pragma once

#include <cstdint>
#include <filesystem>

#include "train/sink.h"

namespace ebb {

// Appends one JSON object a line, each written whole.
class JsonLog : public RunSink {
 public:
  // Lines of steps after `last_step` are cut off: a resumed run writes them again.
  JsonLog(const std::filesystem::path& path, int64_t last_step);
  ~JsonLog() override;
  JsonLog(const JsonLog&) = delete;
  JsonLog& operator=(const JsonLog&) = delete;
  void step(const StepRecord& record) override;

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace ebb
