// The line that tells a person how far a long task is.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ebb {

// When a plain line is due, where nobody rewrites it: at once, after 1, 2, 4 ... seconds, and at
// last every 30, so that the first comes soon and an hour is not a thousand lines.
class Cadence {
 public:
  // Not before `first` has passed.
  explicit Cadence(std::chrono::seconds first = {})
      : next_(std::chrono::steady_clock::now() + first) {}
  bool due();

 private:
  std::chrono::steady_clock::time_point next_;
  std::chrono::seconds wait_{1};
};

// One field of the line. Where the terminal is narrow, those of the highest rank are left out
// first.
struct StatusField {
  std::string text;
  int rank;
};

// The fields side by side in at most `columns` characters. The one of the lowest rank is always
// there, cut off if it must be.
std::string fit_fields(std::vector<StatusField> fields, size_t columns);

// On a terminal one line that is rewritten and never wraps; elsewhere plain lines. Once stdout
// cannot be written it is silent: that nobody reads is no reason to end hours of work, or to call
// it failed.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // On a terminal at most ten times a second, but for the last, which stays. Elsewhere only when
  // `plain`.
  void show(const std::vector<StatusField>& fields, bool plain, bool last);
  // A line of its own, without breaking the one that is rewritten.
  void say(const std::string& line);
  bool on_terminal() const { return terminal_; }

 private:
  void clear();
  void flush();
  bool terminal_, open_ = false, silent_ = false;
  std::chrono::steady_clock::time_point shown_ = {};
};

// `text` as a word of a shell's command line.
std::string shell_word(const std::string& text);

}  // namespace ebb
