// This program, run again in a process of its own.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ebb {

struct Ended {
  int code = 0;  // of exit, or 128 + the signal
  std::string out, err;
};

// With these words behind its name; waits for its end.
Ended run_again(const std::vector<std::string>& words);

// What follows "error: " on stderr, and the hint below it.
std::pair<std::string, std::string> error_and_hint(const Ended& ended);

// Fails as it did.
[[noreturn]] void fail_like(const Ended& ended, const std::string& what);

}  // namespace ebb
