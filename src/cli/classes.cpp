#include "cli/classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

int32_t class_named(const std::string& word, const std::string& flag, int64_t classes,
                    const std::vector<std::string>& names) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool number = error == std::errc() && end == word.data() + word.size();
  const auto named = std::find(names.begin(), names.end(), word);
  if (!number && named != names.end()) value = named - names.begin();
  if (value >= 0 && value < classes) return static_cast<int32_t>(value);
  const std::string wanted = fmt::format("a number from 0 to {}", classes - 1);
  if (classes == 0) {
    fail(Exit::usage, fmt::format("{}: found '{}', but the model has none", flag, printable(word)),
         fmt::format("leave {} out", flag));
  }
  if (number || names.empty()) {
    fail(Exit::usage,
         fmt::format("{}: found '{}', but the model has {} classes{}", flag, printable(word),
                     classes, names.empty() ? " without names" : ""),
         "wanted " + wanted);
  }
  fail(
      Exit::usage,
      fmt::format("{}: no class is named '{}'{}", flag, printable(word), did_you_mean(word, names)),
      fmt::format("wanted {}, or a name such as {}; a name with a comma in it only by its number",
                  wanted, printable(names.front())));
}

}  // namespace

std::vector<int32_t> parse_classes(const std::string& text, const std::string& flag,
                                   int64_t classes, const std::vector<std::string>& names) {
  std::vector<int32_t> labels;
  for (const std::string& word : split(text, ',')) {
    labels.push_back(class_named(word, flag, classes, names));
  }
  return labels;
}

}  // namespace ebb
