// A regular file opened for reading. Training data comes through here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"

namespace ebb {

// Opening fails with Exit::data for whatever is missing, unreadable or not a regular file (a pipe
// with the name of an image would otherwise be waited for). Not thread-safe.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);

  // Reads up to `bytes`; fewer only at the end of the file. Fails with Exit::data.
  size_t read(void* to, size_t bytes);

  // Goes to a place counted from the file's beginning; beyond its end there is nothing to read.
  void seek(int64_t place);

  int64_t size() const { return size_; }
  std::FILE* stream() const { return stream_.get(); }
  // The path, harmless for a terminal.
  const std::string& name() const { return name_; }

 private:
  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };
  std::string name_;
  std::unique_ptr<std::FILE, Close> stream_;
  int64_t size_ = 0;
};

// All of a file that is at most so long; fails with `code` otherwise.
std::string read_text_file(const std::filesystem::path& path, int64_t most_bytes,
                           Exit code = Exit::data);

}  // namespace ebb
