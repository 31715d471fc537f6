// The error: line of the program.
#pragma once

#include <string>

#include "base/error.h"

namespace ebb {

// What was found, and below it what to try. Returns the exit code. Where stderr itself cannot be
// written, that still tells.
int complain(Exit code, const std::string& what, const std::string& hint);

// The same; `verb` is for what to try where the error has nothing better to say, `who` comes before
// the line: "rank 2: ".
int complain(const Error& error, const std::string& verb, const std::string& who = "");

}  // namespace ebb
