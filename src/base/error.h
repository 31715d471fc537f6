// The one error type. A message says where, what was found and what was wanted; the hint says
// what to try. cli/main turns it into the `error:` line, the hint line and the exit code.
#pragma once

#include <ebb/error.h>
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ebb {

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
