#include "plan/layout.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

constexpr const char* kHint = "--ranks data=4 has four ranks that each take a quarter of the batch";

}  // namespace

std::optional<Layout> parse_layout(const std::string& text, const std::string& where) {
  if (text == "auto") return std::nullopt;
  Layout layout;
  std::set<std::string> seen;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (equals == std::string::npos || name != "data" || !seen.insert(name).second) {
      fail(Exit::usage,
           fmt::format("{}: found '{}', wanted auto or data=N", where, printable(text)), kHint);
    }
    const int64_t count = parse_int(part.substr(equals + 1), where);
    if (count < 1 || count > kMostRanks) {
      fail(Exit::usage,
           fmt::format("{}: found {}={}, wanted 1 to {}", where, name, count, kMostRanks), kHint);
    }
    layout.data = static_cast<int>(count);
  }
  return layout;
}

std::string layout_text(const Layout& layout) { return fmt::format("data={}", layout.data); }

}  // namespace ebb
