// JSON: skipped as a whole, read value by value, and as a model's shape.
#include "fuzz.h"

#include "formats/json_reader.h"
#include "formats/model_json.h"

namespace ebb {

namespace {

JsonReader reader_of(std::string_view text) { return {text, "input", Exit::data, ""}; }

// The first letter of a key says what is asked of its value.
void read_value(JsonReader& json, const std::string& key) {
  switch (key.empty() ? '\0' : key[0]) {
    case 'i':
      json.read_int();
      return;
    case 'r':
      json.read_real();
      return;
    case 's':
      if (!is_utf8(json.read_string())) std::abort();
      return;
    case 'b':
      json.read_bool();
      return;
    case 'a':
      json.begin_array();
      while (json.next_element()) json.read_real();
      return;
    case 'o':
      json.begin_object();
      for (std::string inner; json.next_key(inner);) json.skip_value();
      return;
    default:
      json.skip_value();
  }
}

}  // namespace

void fuzz(std::string_view bytes) {
  may_refuse([&] {
    JsonReader json = reader_of(bytes);
    json.skip_value();
    json.finish();
  });
  may_refuse([&] { model_from_json(std::string(bytes), "input", Exit::data); });
  JsonReader quoted = reader_of(bytes);
  const std::string text = json_quote(bytes);
  JsonReader back = reader_of(text);  // whatever the bytes, this is one string
  if (is_utf8(bytes) && back.read_string() != bytes) std::abort();
  quoted.begin_object();
  for (std::string key; quoted.next_key(key);) read_value(quoted, key);
  quoted.finish();
}

}  // namespace ebb
