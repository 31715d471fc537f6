#include "formats/json_reader.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/text.h"

namespace ebb {

namespace {

template <typename Number>
bool parse_whole(std::string_view token, Number& value) {
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  return error == std::errc() && end == token.data() + token.size();
}

void append_utf8(std::string& out, uint32_t code) {
  constexpr uint32_t kLead[] = {0x00, 0xc0, 0xe0, 0xf0};
  int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  out += static_cast<char>(kLead[more] | code >> (6 * more));
  while (more-- > 0) out += static_cast<char>(0x80 | (code >> (6 * more) & 0x3f));
}

}  // namespace

bool is_utf8(std::string_view text) {
  size_t length = 1;
  while (!text.empty() && (length = utf8_length(text)) > 0) text.remove_prefix(length);
  return text.empty();
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      if (byte == '"' || byte == '\\') out += '\\';
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out += '"';
}

JsonReader::JsonReader(std::string_view text, std::string where, Exit code, std::string hint)
    : text_(text), where_(std::move(where)), code_(code), hint_(std::move(hint)) {}

void JsonReader::refuse(std::string_view found, std::string_view wanted) const {
  fail(code_, fmt::format("{}, byte {}: found {}, wanted {}", where_, value_at_, found, wanted),
       hint_);
}

void JsonReader::refuse_next(std::string_view wanted) {
  value_at_ = at_;
  if (at_ >= text_.size()) refuse("the end of the text", wanted);
  refuse(fmt::format("'{}'", printable(text_.substr(at_, 1))), wanted);
}

int JsonReader::peek() {
  at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size());
  return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : -1;
}

void JsonReader::expect(char c, std::string_view wanted) {
  if (peek() != static_cast<unsigned char>(c)) refuse_next(wanted);
  value_at_ = at_++;
}

void JsonReader::push(bool is_object) {
  if (depth_ == kMaxDepth) {
    refuse("one more level of nesting", fmt::format("at most {} levels", kMaxDepth));
  }
  levels_[depth_++] = {is_object, true, keys_.size()};
}

void JsonReader::begin_object() {
  expect('{', "an object");
  push(true);
}

void JsonReader::begin_array() {
  expect('[', "an array");
  push(false);
}

bool JsonReader::next_key(std::string& key) {
  require(depth_ > 0 && levels_[depth_ - 1].is_object, "{}: next_key outside an object", where_);
  Level& level = levels_[depth_ - 1];
  if (peek() == '}') {
    ++at_;
    pop_object();
    return false;
  }
  if (!level.is_empty) expect(',', "',' or '}'");
  level.is_empty = false;
  key = read_string();
  keys_.push_back({XXH3_64bits(key.data(), key.size()), value_at_});
  const size_t key_at = value_at_;
  expect(':', "':'");
  value_at_ = key_at;  // what the caller refuses now is the key
  return true;
}

bool JsonReader::next_element() {
  require(depth_ > 0 && !levels_[depth_ - 1].is_object, "{}: next_element outside an array",
          where_);
  Level& level = levels_[depth_ - 1];
  if (peek() == ']') {
    ++at_;
    --depth_;
    return false;
  }
  if (!level.is_empty) expect(',', "',' or ']'");
  level.is_empty = false;
  return true;
}

// Duplicates are found by sorting hashes: no set of strings, and no quadratic time on hostile keys.
// Two different keys of one hash would be refused too; only an attacker can make them.
void JsonReader::pop_object() {
  const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(levels_[--depth_].first_key);
  std::sort(first, keys_.end());
  const auto twice = std::adjacent_find(
      first, keys_.end(), [](const Key& a, const Key& b) { return a.hash == b.hash; });
  if (twice != keys_.end()) {
    at_ = (twice + 1)->position;
    const std::string key = read_string();
    refuse(fmt::format("the key '{}' a second time", printable(key)), "every key once");
  }
  keys_.erase(first, keys_.end());
}

std::string JsonReader::read_string() {
  expect('"', "a string");
  const size_t begin = value_at_;
  std::string out;
  while (true) {
    size_t end = at_;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
           static_cast<unsigned char>(text_[end]) >= 0x20) {
      const size_t length = utf8_length(text_.substr(end, 4));
      if (length == 0) break;
      end += length;
    }
    out += text_.substr(at_, end - at_);
    at_ = end;
    if (at_ < text_.size() && text_[at_] == '"') break;
    if (at_ >= text_.size() || text_[at_] != '\\') {
      refuse_next("the rest of a string, in valid UTF-8 without control characters");
    }
    ++at_;
    read_escape(out);
  }
  ++at_;
  value_at_ = begin;
  return out;
}

void JsonReader::read_escape(std::string& out) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char letter = at_ < text_.size() ? text_[at_] : '\0';
  if (const size_t index = kLetters.find(letter); index != std::string_view::npos) {
    out += kMeanings[index];
    ++at_;
    return;
  }
  if (letter != 'u') refuse_next("a JSON escape");
  ++at_;
  uint32_t code = read_hex4();
  if (code >= 0xd800 && code <= 0xdfff) {
    const bool is_first = code < 0xdc00 && text_.substr(at_, 2) == "\\u";
    if (!is_first) refuse_next("both halves of a surrogate pair");
    at_ += 2;
    const uint32_t second = read_hex4();
    if (second < 0xdc00 || second > 0xdfff) refuse_next("both halves of a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
  }
  append_utf8(out, code);
}

uint32_t JsonReader::read_hex4() {
  uint32_t code = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const char* end = digits.data() + digits.size();
  if (digits.size() < 4 || std::from_chars(digits.data(), end, code, 16).ptr != end) {
    refuse_next("four hexadecimal digits");
  }
  at_ += 4;
  return code;
}

// The number that comes next, by JSON's grammar: no plus, no leading zero, digits round the point.
std::string_view JsonReader::number_token() {
  peek();
  value_at_ = at_;
  const auto byte = [&] { return at_ < text_.size() ? text_[at_] : '\0'; };
  const auto digits = [&] {
    const size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
    if (end == at_) refuse_next("a number");
    at_ = end;
  };
  if (byte() == '-') ++at_;
  if (byte() == '0') {
    ++at_;
  } else {
    digits();
  }
  if (byte() == '.') {
    ++at_;
    digits();
  }
  if (byte() == 'e' || byte() == 'E') {
    ++at_;
    if (byte() == '+' || byte() == '-') ++at_;
    digits();
  }
  return text_.substr(value_at_, at_ - value_at_);
}

int64_t JsonReader::read_int() {
  const std::string_view token = number_token();
  int64_t value = 0;
  if (!parse_whole(token, value)) refuse(printable(token), "a whole number that fits 64 bits");
  return value;
}

double JsonReader::read_real() {
  const std::string_view token = number_token();
  double value = 0;
  if (!parse_whole(token, value)) refuse(printable(token), "a number that a double can hold");
  return value;
}

void JsonReader::skip_word(std::string_view word) {
  peek();
  if (text_.substr(at_, word.size()) != word) refuse_next(fmt::format("{}", word));
  value_at_ = at_;
  at_ += word.size();
}

bool JsonReader::read_bool() {
  const bool value = peek() == 't';
  if (!value && peek() != 'f') refuse_next("true or false");
  skip_word(value ? "true" : "false");
  return value;
}

// Recursion goes no deeper than kMaxDepth: push refuses the next level.
void JsonReader::skip_value() {
  const int next = peek();
  if (next == '{') {
    begin_object();
    for (std::string key; next_key(key);) skip_value();
  } else if (next == '[') {
    begin_array();
    while (next_element()) skip_value();
  } else if (next == '"') {
    read_string();
  } else if (next == 't' || next == 'f') {
    read_bool();
  } else if (next == 'n') {
    skip_word("null");
  } else {
    number_token();
  }
}

void JsonReader::finish() {
  require(depth_ == 0, "{}: finish inside a value", where_);
  if (peek() != -1) refuse_next("nothing but spaces after the value");
}

}  // namespace ebb
