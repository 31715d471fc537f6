// Classes as a user names them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ebb {

// The labels of "3,tulip,0": numbers, or names where the classes have some; a number always is one.
// Fails with Exit::usage naming the flag.
std::vector<int32_t> parse_classes(const std::string& text, const std::string& flag,
                                   int64_t classes, const std::vector<std::string>& names);

}  // namespace ebb
