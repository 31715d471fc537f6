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

std::string format_rate(double images_per_second) {
  if (images_per_second >= 100) return fmt::format("{:.0f} images/s", images_per_second);
  if (images_per_second >= 1) return fmt::format("{:.1f} images/s", images_per_second);
  return fmt::format("{:.1f} s an image", 1 / images_per_second);
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

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > 200) out += "...";
  return out;
}

}  // namespace ebb
