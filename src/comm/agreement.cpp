#include "comm/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace ebb {

namespace {

// An error as a text: its code, then what was found and what to try. Nothing: it went well.
constexpr char kBetween = '\x1f';

std::string packed(const Error& e) {
  constexpr size_t kMost = Peers::kTextBytes / 2 - 16;
  return fmt::format("{}{}{}{}{}", static_cast<int>(e.code()), kBetween,
                     std::string(e.what()).substr(0, kMost), kBetween, e.hint().substr(0, kMost));
}

SharedError unpacked(const std::string& text, const std::string& who) {
  const size_t first = text.find(kBetween), second = text.find(kBetween, first + 1);
  require(first != std::string::npos && second != std::string::npos, "ranks: an error in pieces");
  return {static_cast<Exit>(std::stoi(text.substr(0, first))),
          who + text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

// The first line that is not the same in both.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const std::vector<std::string> of_a = split(a, '\n'), of_b = split(b, '\n');
  const auto line = [](const std::vector<std::string>& lines, size_t i) {
    constexpr size_t kMost = 1000;
    if (i >= lines.size()) return std::string("nothing");
    return fmt::format("'{}'", printable(lines[i].substr(0, kMost)));
  };
  size_t i = 0;
  while (i < of_a.size() && i < of_b.size() && of_a[i] == of_b[i]) ++i;
  return {line(of_a, i), line(of_b, i)};
}

}  // namespace

std::string from_first(Peers& peers, const std::string& text) {
  std::string all;
  for (size_t at = 0;; at += Peers::kTextBytes) {
    const bool has = peers.rank() == 0 && at < text.size();
    const std::string part =
        peers.tell_all(has ? text.substr(at, Peers::kTextBytes) : std::string())[0];
    all += part;
    if (part.size() < Peers::kTextBytes) return all;
  }
}

void together(Peers* peers, const std::function<void()>& work) {
  if (peers == nullptr) return work();
  std::string own;
  try {
    work();
  } catch (const Error& e) {
    if (e.code() == Exit::peer) throw;  // which all will notice by themselves
    own = packed(e);
  }
  const std::vector<std::string> all = peers->tell_all(own);
  const auto failed =
      std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  if (failed == all.end()) return;
  const bool alike =
      std::all_of(all.begin(), all.end(), [&](const std::string& text) { return text == *failed; });
  throw unpacked(*failed, alike ? "" : fmt::format("rank {}: ", failed - all.begin()));
}

void expect_same(Peers& peers, const std::string& what, const std::string& text,
                 const std::string& hint) {
  const std::string first = from_first(peers, text);
  const auto [own, wanted] = first_difference(text, first);
  const std::vector<std::string> all =
      peers.tell_all(text == first ? "" : fmt::format("found {}, wanted {}", own, wanted));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    throw SharedError(Exit::usage,
                      fmt::format("ranks: the {} of rank {}: {} as rank 0 has", what, r, all[r]),
                      hint);
  }
}

}  // namespace ebb
