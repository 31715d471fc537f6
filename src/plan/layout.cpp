#include "plan/layout.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

constexpr const char* kHint =
    "--ranks data=4: four that each take a quarter of the batch; --ranks pipe=4: four that each "
    "have a quarter of the blocks";

}  // namespace

std::optional<Layout> parse_layout(const std::string& text, const std::string& where) {
  if (text == "auto") return std::nullopt;
  Layout layout;
  std::set<std::string> seen;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    int* const member = name == "data" ? &layout.data : name == "pipe" ? &layout.pipe : nullptr;
    if (equals == std::string::npos || member == nullptr || !seen.insert(name).second) {
      fail(Exit::usage,
           fmt::format("{}: found '{}', wanted auto, data=N, pipe=N or both, as in "
                       "data=2,pipe=4",
                       where, printable(text)),
           kHint);
    }
    const int64_t count = parse_int(part.substr(equals + 1), where);
    if (count < 1 || count > kMostRanks) {
      fail(Exit::usage,
           fmt::format("{}: found {}={}, wanted 1 to {}", where, name, count, kMostRanks), kHint);
    }
    *member = static_cast<int>(count);
  }
  if (layout.data * static_cast<int64_t>(layout.pipe) > kMostRanks) {
    fail(Exit::usage, fmt::format("{}: found '{}', wanted {} ranks at most", where, printable(text),
                                  kMostRanks));
  }
  return layout;
}

int parse_sum(const std::string& text, const std::string& where) {
  if (text == "chain") return 0;
  constexpr std::string_view kTree = "tree:";
  const bool tree = text.starts_with(kTree);
  const int64_t leaves = tree ? parse_int(text.substr(kTree.size()), where) : 0;
  if (!tree || leaves < 1 || leaves > kMostRanks || (leaves & (leaves - 1)) != 0) {
    fail(Exit::usage,
         fmt::format("{}: found '{}', wanted chain, or tree:S with S a power of two up to {}",
                     where, printable(text), kMostRanks),
         "--sum tree:8: eight parts of every batch are summed by themselves, then in pairs; the "
         "same bits on 1, 2, 4 or 8 ranks");
  }
  return static_cast<int>(leaves);
}

std::string layout_text(const Layout& layout) {
  if (layout.pipe == 1) return fmt::format("data={}", layout.data);
  if (layout.data == 1) return fmt::format("pipe={}", layout.pipe);
  return fmt::format("data={},pipe={}", layout.data, layout.pipe);
}

}  // namespace ebb
