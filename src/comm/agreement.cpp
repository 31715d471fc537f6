#include "comm/agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

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
  fail(static_cast<Exit>(text[0]), what, end == std::string::npos ? "" : text.substr(end + 1));
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
  const auto rank = static_cast<int>(failed - all.begin());
  if (rank == peers.rank()) std::rethrow_exception(failure);
  fail_as(rank, *failed);
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
  } catch (const Error& error) {
    if (error.code() == Exit::peer) throw;
    failure_ = std::current_exception();
  } catch (const std::exception&) {
    failure_ = std::current_exception();
  }
}

}  // namespace ebb
