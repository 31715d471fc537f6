#include "plan/layout.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

constexpr const char* kHint =
    "--ranks data=4: four that each take a quarter of the batch; --ranks pipe=4: four that each "
    "have a quarter of the blocks; --ranks tensor=4: four that each have a quarter of every block";

int* member_of(Layout& layout, const std::string& name) {
  return name == "data"     ? &layout.data
         : name == "pipe"   ? &layout.pipe
         : name == "tensor" ? &layout.tensor
                            : nullptr;
}

}  // namespace

std::optional<Layout> parse_layout(const std::string& text, const std::string& where) {
  if (text == "auto") return std::nullopt;
  Layout layout;
  std::set<std::string> seen;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    int* const member = member_of(layout, name);
    if (equals == std::string::npos || member == nullptr || !seen.insert(name).second) {
      fail(Exit::usage,
           fmt::format("{}: found '{}', wanted auto, data=N, pipe=N, tensor=N or some of them, as "
                       "in data=2,pipe=4",
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
  if (static_cast<double>(layout.data) * layout.pipe * layout.tensor > kMostRanks) {
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
  std::string text;
  const auto add = [&](const char* name, int count) {
    if (count > 1) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, count);
  };
  add("data", layout.data);
  add("pipe", layout.pipe);
  add("tensor", layout.tensor);
  return text.empty() ? "data=1" : text;
}

std::string layout_text(const RankPlace& place) {
  return layout_text(Layout{place.data, place.pipe, place.tensor});
}

}  // namespace ebb
