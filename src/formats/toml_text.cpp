#include "formats/toml_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/json_reader.h"

namespace ebb {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Walks lines of "name = value" and comments, strings of all four kinds included, which is all that
// a settings file needs. Stops where anything else begins: a list, a table, or what is no TOML.
class PlainLines {
 public:
  explicit PlainLines(std::string_view text) : text_(text) {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  }

  // How far the text is plain: what follows holds strings that only a whole parser could tell.
  size_t end() {
    size_t line = at_;
    while (at_ < text_.size() && walk_line()) line = at_;
    return line;
  }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\n'; }
  void skip_blanks() {
    while (next() == ' ' || next() == '\t') ++at_;
  }
  bool walk_line() {
    skip_blanks();
    if (next() != '#' && next() != '\n' && next() != '\r' && !walk_setting()) return false;
    skip_blanks();
    if (next() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
    if (next() == '\r') ++at_;
    if (next() != '\n') return false;
    at_ = std::min(at_ + 1, text_.size());
    return true;
  }
  bool walk_setting() {
    do {
      skip_blanks();
      if (!(is_quote(next()) ? walk_string() : walk_bare())) return false;
      skip_blanks();
    } while (next() == '.' && ++at_ != 0);
    if (next() != '=') return false;
    ++at_;
    skip_blanks();
    if (!is_quote(next())) return walk_bare();
    return text_.substr(at_).starts_with(std::string(3, next())) ? walk_long() : walk_string();
  }
  static bool is_quote(char c) { return c == '"' || c == '\''; }

  // A name or a number: letters and the signs that occur in one.
  bool walk_bare() {
    const size_t begin = at_;
    const auto belongs = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '+';
    };
    while (belongs(next()) || (next() == '.' && at_ > begin && is_digit(text_[at_ - 1]))) ++at_;
    return at_ > begin;
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  // On one line, from its quote on.
  bool walk_string() {
    const char quote = next();
    for (++at_; next() != '\n'; ++at_) {
      if (next() == quote) return ++at_ != 0;
      if (next() == '\\' && quote == '"') ++at_;
    }
    return false;
  }
  // Between three quotes each, of which two more may stand before the last three.
  bool walk_long() {
    const char quote = next();
    for (at_ += 3; at_ < text_.size(); ++at_) {
      size_t quotes = 0;
      while (quotes < 5 && at_ + quotes < text_.size() && text_[at_ + quotes] == quote) ++quotes;
      if (quotes >= 3) {
        at_ += quotes;
        return true;
      }
      if (text_[at_] == '\\' && quote == '"' && !walk_escape()) return false;
    }
    return false;
  }
  // Up to the last character of what the backslash stands before: a sign, or white space that it
  // takes away. What comes then is looked up by toml++ too.
  bool walk_escape() {
    const size_t after = text_.find_first_not_of(" \t\r\n", at_ + 1);
    at_ = std::max(at_ + 1, std::min(after, text_.size()) - 1);
    return after == text_.npos || static_cast<unsigned char>(text_[after]) < 0x80;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

void check_toml_text(std::string_view text, const std::string& name) {
  const auto foreign = [](char c) { return static_cast<unsigned char>(c) >= 0x80; };
  const size_t plain = PlainLines(text).end();
  const auto found =
      std::find_if(text.begin() + static_cast<ptrdiff_t>(plain), text.end(), foreign);
  if (found == text.end()) return;
  const auto at = static_cast<size_t>(found - text.begin());
  const size_t length = std::max<size_t>(1, utf8_length(text.substr(at)));
  fail(Exit::usage,
       fmt::format("{}:{}: found '{}' outside the strings and comments of plain settings, wanted "
                   "ASCII",
                   name, 1 + std::count(text.begin(), found, '\n'),
                   printable(std::string(text.substr(at, length)))),
       "write lines of name = value, with the value in quotes");
}

}  // namespace ebb
