#include "formats/toml_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/json_reader.h"

namespace ebb {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// How many times the text has c from `at` on.
size_t run_of(char c, std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(c, at), text.size()) - at;
}

// `at` is just behind the quote that opens a string. Where the string ends: behind its closing
// quotes, or where a line that has none ends, which toml++ refuses.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at - 1];
  const bool long_one = run_of(quote, text, at - 1) >= 3;
  if (long_one) at += 2;
  while (at < text.size()) {
    if (text[at] == '\\' && quote == '"') {
      at += 2;
    } else if (text[at] == quote) {
      const size_t quotes = run_of(quote, text, at);
      if (!long_one) return at + 1;
      // Up to two quotes may stand before the three that close it.
      if (quotes >= 3) return at + std::min<size_t>(quotes, 5);
      at += quotes;
    } else if (text[at] == '\n' && !long_one) {
      return at;
    } else {
      ++at;
    }
  }
  return text.size();
}

}  // namespace

void check_toml_text(std::string_view text, const std::string& name) {
  size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"' || c == '\'') {
      at = end_of_string(text, at + 1);
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      const size_t length = std::max<size_t>(1, utf8_length(text.substr(at)));
      fail(
          Exit::usage,
          fmt::format("{}:{}: found '{}' outside strings and comments, wanted ASCII", name,
                      1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n'),
                      printable(std::string(text.substr(at, length)))),
          "put the name or the value in quotes");
    } else {
      ++at;
    }
  }
}

}  // namespace ebb
