// What of a TOML text is settled before toml++ sees it.
#pragma once

#include <string>
#include <string_view>

namespace ebb {

// Refuses characters beyond ASCII but in comments and in strings of plain "name = value" lines,
// with Exit::usage as "NAME:LINE: ...". Outside strings TOML allows none, and toml++ 3.3 then looks
// them up in tables of letters, past their ends; so it does with what follows a backslash between
// three quotes. Lists and tables, which no setting is, are not
// looked into: from there on all must be ASCII.
void check_toml_text(std::string_view text, const std::string& name);

}  // namespace ebb
