// JSON from files that nobody vouches for.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ebb {

// Walks a JSON text value by value; the caller says what it wants and anything else is refused.
//
//   JsonReader json(text, "a.safetensors: header", Exit::data, "fetch the file again");
//   json.begin_object();
//   for (std::string key; json.next_key(key);) {
//     if (key == "depth") depth = json.read_int(); else json.skip_value();
//   }
//   json.finish();
//
// Strict: RFC 8259 grammar, UTF-8 without surrogates or overlong forms, paired \u escapes, no
// duplicate keys (noticed when their object ends, in skipped values too), numbers that fit.
// Bounded on hostile bytes: nesting up to kMaxDepth, time n log n, memory one decoded string plus
// 16 bytes for each key of the objects that are open. Keeps a view of the text.
class JsonReader {
 public:
  static constexpr size_t kMaxDepth = 32;

  // Each refusal reads "WHERE, byte N: found ..., wanted ..." and carries `code` and `hint`.
  JsonReader(std::string_view text, std::string where, Exit code, std::string hint);

  // After next_key or next_element returned true, exactly one value must be read or skipped.
  // False: the object or array has ended.
  void begin_object();
  bool next_key(std::string& key);
  void begin_array();
  bool next_element();

  std::string read_string();
  int64_t read_int();  // no fraction, no exponent
  double read_real();
  bool read_bool();
  void skip_value();

  // Only whitespace may follow.
  void finish();

  // Refuses the value read last, for rules that only the caller knows.
  [[noreturn]] void refuse(std::string_view found, std::string_view wanted) const;

 private:
  struct Level {
    bool is_object;
    bool is_empty;
    size_t first_key;  // in keys_
  };
  struct Key {
    uint64_t hash;
    size_t position;
    auto operator<=>(const Key&) const = default;
  };

  int peek();  // the next byte that is not whitespace, not consumed; -1 at the end
  [[noreturn]] void refuse_next(std::string_view wanted);
  void expect(char c, std::string_view wanted);
  void push(bool is_object);
  void pop_object();
  void read_escape(std::string& out);
  uint32_t read_hex4();
  std::string_view number_token();
  void skip_word(std::string_view word);

  std::string_view text_;
  std::string where_;
  Exit code_;
  std::string hint_;
  size_t at_ = 0;
  size_t value_at_ = 0;  // where the value read last began
  size_t depth_ = 0;
  std::array<Level, kMaxDepth> levels_;
  std::vector<Key> keys_;  // those of all open objects, innermost last
};

bool is_utf8(std::string_view text);

// "text" as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace ebb
