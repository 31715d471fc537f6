#include "cli/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace ebb {

namespace {

using Clock = std::chrono::steady_clock;

// Asked each time: a window can be made narrower at any moment.
size_t terminal_columns() {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

bool can_rewrite_lines() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

std::string joined(const std::vector<StatusField>& fields) {
  std::string line;
  for (const StatusField& field : fields) line += (line.empty() ? "" : "  ") + field.text;
  return line;
}

}  // namespace

bool Cadence::due() {
  constexpr std::chrono::seconds kLongest{30};
  const auto now = Clock::now();
  if (now < next_) return false;
  next_ = now + wait_;
  wait_ = std::min(2 * wait_, kLongest);
  return true;
}

std::string fit_fields(std::vector<StatusField> fields, size_t columns) {
  while (fields.size() > 1 && joined(fields).size() > columns) {
    fields.erase(std::max_element(
        fields.begin(), fields.end(),
        [](const StatusField& a, const StatusField& b) { return a.rank < b.rank; }));
  }
  return joined(fields).substr(0, columns);
}

StatusLine::StatusLine() : terminal_(can_rewrite_lines()) {}

StatusLine::~StatusLine() {
  if (open_ && !silent_) std::puts("");
}

void StatusLine::clear() {
  if (open_) fmt::print("\r\033[K");
  open_ = false;
}

void StatusLine::flush() { silent_ = std::fflush(stdout) != 0; }

void StatusLine::show(const std::vector<StatusField>& fields, bool plain, bool last) {
  if (!terminal_) {
    if (plain) say(joined(fields));
    return;
  }
  if (silent_) return;
  constexpr std::chrono::milliseconds kShortest{100};
  const auto now = Clock::now();
  if (!last && now < shown_ + kShortest) return;
  shown_ = now;
  clear();
  // A line as wide as the terminal would move the cursor to the next one.
  fmt::print("{}{}", fit_fields(fields, terminal_columns() - 1), last ? "\n" : "");
  open_ = !last;
  flush();
}

void StatusLine::say(const std::string& line) {
  if (silent_) return;
  clear();
  fmt::print("{}\n", line);
  flush();
}

std::string shell_word(const std::string& text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_./-+,=:@%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace ebb
