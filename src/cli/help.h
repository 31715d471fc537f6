// What --help shows of a verb's settings.
#pragma once

#include <string>

namespace ebb {

// Every setting with its default, by group, in 80 columns.
std::string settings_help(const std::string& verb);

}  // namespace ebb
