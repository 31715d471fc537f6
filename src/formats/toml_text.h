// What of a TOML text is settled before toml++ sees it.
#pragma once

#include <string>
#include <string_view>

namespace ebb {

// Refuses characters beyond ASCII outside strings and comments, where TOML allows none, with
// Exit::usage as "NAME:LINE: ...". toml++ 3.3 looks them up in tables of letters, past their ends.
void check_toml_text(std::string_view text, const std::string& name);

}  // namespace ebb
