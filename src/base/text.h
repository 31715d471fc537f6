// Text that people read and type: sizes, durations, near-miss suggestions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ebb {

// "8G", "512M", "1.5GiB", "123456" -> bytes (all units binary). Fails with Exit::usage, naming
// `where`.
int64_t parse_size(std::string_view text, std::string_view where);

// 1610612736 -> "1.50 GiB".
std::string format_size(int64_t bytes);

// 75.2 -> "1m15s".
std::string format_seconds(double seconds);

// 25.31 -> "25.3 images/s"; fewer than one a second as "12.5 s an image".
std::string format_rate(double images_per_second);

// "; did you mean --depth?", or "" when nothing known is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

// Whole-string number parsing; fails with Exit::usage, naming `where` and the text found.
int64_t parse_int(std::string_view text, std::string_view where);
double parse_real(std::string_view text, std::string_view where);

std::vector<std::string> split(std::string_view text, char separator);

// Control bytes and invalid UTF-8 of untrusted names made harmless for a terminal.
std::string printable(std::string_view text);

}  // namespace ebb
