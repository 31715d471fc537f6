#include "formats/data_json.h"

#include <fmt/format.h>

#include "formats/json_reader.h"

namespace ebb {

namespace {

constexpr int64_t kMostSamples = int64_t{1} << 48;

// A JSON array of what `text_of` makes of each.
template <typename Values, typename TextOf>
std::string list_of(const Values& values, TextOf text_of) {
  std::string list = "[";
  for (const auto& value : values) {
    if (list.size() > 1) list += ',';
    list += text_of(value);
  }
  list += ']';
  return list;
}

int64_t read_count(JsonReader& json) {
  const int64_t count = json.read_int();
  if (count < 0 || count > kMostSamples) {
    json.refuse(fmt::format("{}", count), fmt::format("a count from 0 to {}", kMostSamples));
  }
  return count;
}

}  // namespace

std::string data_to_json(const DataRecord& r) {
  const std::string head = fmt::format(R"({{"kind":{},"count":{},"fingerprint":{})",
                                       json_quote(r.kind), r.count, json_quote(r.fingerprint));
  const std::string classes =
      fmt::format(R"(,"names":{},"counts":{})",
                  list_of(r.names, [](const std::string& name) { return json_quote(name); }),
                  list_of(r.counts, [](int64_t count) { return std::to_string(count); }));
  return head + (classes.size() <= kMostRecordBytes ? classes : std::string()) + "}";
}

DataRecord data_from_json(const std::string& text, const std::string& where, Exit code) {
  JsonReader json(text, where + ": " + kDataKey, code, "wanted what `ebb train` writes");
  DataRecord r;
  json.begin_object();
  if (text.size() > 2 * kMostRecordBytes) {
    json.refuse(fmt::format("{} bytes", text.size()),
                fmt::format("at most {}", 2 * kMostRecordBytes));
  }
  for (std::string key; json.next_key(key);) {
    if (key == "kind") {
      r.kind = json.read_string();
    } else if (key == "count") {
      r.count = read_count(json);
    } else if (key == "fingerprint") {
      r.fingerprint = json.read_string();
    } else if (key == "names") {
      json.begin_array();
      while (json.next_element()) r.names.push_back(json.read_string());
    } else if (key == "counts") {
      json.begin_array();
      while (json.next_element()) r.counts.push_back(read_count(json));
    } else {
      json.skip_value();
    }
  }
  json.finish();
  return r;
}

}  // namespace ebb
