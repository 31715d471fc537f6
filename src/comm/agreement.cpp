#include "comm/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

constexpr char kBug = 'b';  // no exit code

// A failure as a text: its exit code, what it says, a zero, its hint. Empty: there is none.
std::string told(const std::exception_ptr& failure) {
  if (!failure) return "";
  std::string text;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    text = static_cast<char>(error.code()) + std::string(error.what()) + '\0' + error.hint();
  } catch (const std::system_error& error) {
    text = static_cast<char>(Exit::disk) + std::string(error.what()) + '\0' +
           "the output could not be written: is its disk full, its terminal closed?";
  } catch (const std::exception& error) {
    text = kBug + std::string(error.what());
  }
  return text.substr(0, static_cast<size_t>(Peers::kTextBytes));
}

[[noreturn]] void fail_as(int rank, const std::string& text) {
  const size_t end = text.find('\0', 1);
  const std::string said = text.substr(1, end == std::string::npos ? end : end - 1);
  const std::string what = rank == 0 ? said : fmt::format("rank {}: {}", rank, said);
  if (text[0] == kBug) throw Bug(what);
  throw SharedError(static_cast<Exit>(text[0]), what,
                    end == std::string::npos ? "" : text.substr(end + 1));
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

void agree(Peers& peers, const std::exception_ptr& failure) {
  const std::vector<std::string> all = peers.tell_all(told(failure));
  const auto failed =
      std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  if (failed == all.end()) return;
  // Whoever throws may end, and then is lost to the others: all have to know first.
  try {
    peers.any(0);
  } catch (const Error&) {  // this one knows
  }
  fail_as(static_cast<int>(failed - all.begin()), *failed);
}

void agree(Peers* peers, const std::function<void()>& part) {
  if (peers == nullptr) return part();
  Attempt attempt;
  attempt.run(part);
  agree(*peers, attempt.failure());
}

void Attempt::run(const std::function<void()>& part) {
  if (failure_) return;
  try {
    part();
  } catch (const SharedError&) {
    throw;  // the others do too
  } catch (const Error& error) {
    if (error.code() == Exit::peer) throw;
    failure_ = std::current_exception();
  } catch (const std::exception&) {
    failure_ = std::current_exception();
  }
}

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
