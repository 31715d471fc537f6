// The one error type. A message says where, what was found and what was wanted; the hint says
// what to try. cli/main turns it into the `error:` line, the hint line and the exit code.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ebb {

// The exit codes of the program.
enum class Exit : int {
  ok = 0,
  usage = 2,    // flags and settings
  budget = 3,   // the memory budget cannot hold
  data = 4,     // training data
  disk = 5,     // checkpoint, output or disk
  numbers = 6,  // NaN or inf
  peer = 7,     // a peer rank was lost
};

class Error : public std::runtime_error {
 public:
  Error(Exit code, const std::string& what, std::string hint = "")
      : std::runtime_error(what), code_(code), hint_(std::move(hint)) {}
  Exit code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  Exit code_;
  std::string hint_;
};

[[noreturn]] inline void fail(Exit code, const std::string& what, std::string hint = "") {
  throw Error(code, what, std::move(hint));
}

// For rules that only a bug in Ebb can break: no hint, and not an exit code of their own.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Bug(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ebb
