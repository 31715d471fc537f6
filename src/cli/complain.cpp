#include "cli/complain.h"

#include <fmt/format.h>

#include <cstdio>

namespace ebb {

namespace {

// What to try where a message has nothing better to say.
std::string usual_hint(Exit code, const std::string& verb) {
  switch (code) {
    case Exit::usage:
      return fmt::format("ebb {} --help shows what is wanted", verb);
    case Exit::data:
      return "ebb inspect PATH shows what is there";
    case Exit::budget:
      return "give a larger --memory, or a smaller model or batch";
    case Exit::numbers:
      return "look for NaN or infinity in the data and the weights";
    default:
      return "check that the path is right, may be written, and that its disk has room";
  }
}

}  // namespace

int complain(Exit code, const std::string& what, const std::string& hint) {
  std::fputs(fmt::format("error: {}\n  {}\n", what, hint).c_str(), stderr);
  return static_cast<int>(code);
}

int complain(const Error& e, const std::string& verb, const std::string& who) {
  return complain(e.code(), who + e.what(),
                  e.hint().empty() ? usual_hint(e.code(), verb) : e.hint());
}

}  // namespace ebb
