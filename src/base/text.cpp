#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace ebb {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      const int change = diagonal + (a[i - 1] != b[j - 1]);
      row[j] = std::min({above + 1, row[j - 1] + 1, change});
      diagonal = above;
    }
  }
  return row[b.size()];
}

char32_t decoded_utf8(std::string_view c) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(c[i]); };
  if (c.size() == 1) return byte(0);
  char32_t code = byte(0) & (0x7fu >> c.size());
  for (size_t i = 1; i < c.size(); ++i) code = code << 6 | (byte(i) & 0x3fu);
  return code;
}

// C0, DEL and C1 codes, line separators, and marks that turn the direction of what follows.
bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c ||
         (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

int64_t parse_size(std::string_view text, std::string_view where) {
  double number = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit = lower(text.substr(end - text.data()));
  double factor = 0;
  if (unit.empty() || unit == "b") factor = 1;
  for (const auto& [letter, power] : {std::pair{'k', 10}, {'m', 20}, {'g', 30}, {'t', 40}}) {
    if (unit.size() <= 3 && !unit.empty() && unit[0] == letter &&
        (unit.size() == 1 || unit.substr(1) == "b" || unit.substr(1) == "ib")) {
      factor = std::ldexp(1.0, power);
    }
  }
  const double bytes = number * factor;
  if (ec != std::errc() || factor == 0 || !(bytes >= 1) || bytes > 9e18) {
    fail(Exit::usage, fmt::format("{}: '{}' is not a size", where, printable(text)),
         "write a number of bytes with an optional unit: 512M, 8G, 1.5GiB");
  }
  return static_cast<int64_t>(std::llround(bytes));
}

std::string format_size(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : (value < 100 ? 1 : 0), units[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1) return fmt::format("{:.0f}ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  // A longer word for a known one: --batch-size for --batch.
  for (const std::string& candidate : known) {
    const std::string near = lower(candidate);
    const std::string_view bare = std::string_view(near).substr(near.find_first_not_of('-'));
    if (bare.size() >= 4 && lower(word).rfind(near, 0) == 0)
      return fmt::format("; did you mean {}?", candidate);
  }
  int best_distance = std::max(2, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : known) {
    const int distance = edit_distance(lower(word), lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = &candidate;
    }
  }
  return best ? fmt::format("; did you mean {}?", *best) : "";
}

int64_t parse_int(std::string_view text, std::string_view where) {
  int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) {
    fail(Exit::usage, fmt::format("{}: found '{}', wanted a whole number", where, printable(text)));
  }
  return value;
}

double parse_real(std::string_view text, std::string_view where) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    fail(Exit::usage, fmt::format("{}: found '{}', wanted a number", where, printable(text)));
  }
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and what lies past U+10FFFF all show in the second byte.
  const auto second = static_cast<unsigned char>(text[1]);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f)) return 0;
  if ((lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) return 0;
  return length;
}

std::string clean_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length > 0 && !is_control(decoded_utf8(text.substr(0, length)))) {
      out += text.substr(0, length);
    } else {
      for (const char c : text.substr(0, std::max<size_t>(1, length))) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return out;
}

std::string printable(std::string_view text) {
  size_t shown = std::min<size_t>(text.size(), 200);
  // Not within a character.
  while (shown > 0 && shown < text.size() && (text[shown] & 0xc0) == 0x80) --shown;
  return clean_utf8(text.substr(0, shown)) + (shown < text.size() ? "..." : "");
}

}  // namespace ebb
