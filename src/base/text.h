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

// "; did you mean --depth?", or "" when nothing known is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

// Whole-string number parsing; fails with Exit::usage, naming `where` and the text found.
int64_t parse_int(std::string_view text, std::string_view where);
double parse_real(std::string_view text, std::string_view where);

std::vector<std::string> split(std::string_view text, char separator);

// The length, 1 to 4, of the UTF-8 character that begins the text; 0 when it is not valid.
size_t utf8_length(std::string_view text);

// Untrusted text as valid UTF-8 that is harmless for a terminal: control codes, what turns the
// direction of text and bytes that are not UTF-8 become "\x1b" and the like.
std::string clean_utf8(std::string_view text);

// The same for messages, which show 200 bytes at most.
std::string printable(std::string_view text);

}  // namespace ebb
