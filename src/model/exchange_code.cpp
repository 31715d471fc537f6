#include "model/exchange_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "program/ops_exchange.h"

namespace ebb {

namespace {

using Kind = ExchangeCode::Kind;

constexpr const char* kRest = "rest";
constexpr double kFirstShare = 0.25;  // of a warm-up; each phase has as much of the one before

template <typename T>
std::optional<T> number_in(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

bool ExchangeCode::codes(const ParamSpec& p) const {
  constexpr int64_t kLeast = 256;
  if (!any() || !p.trained() || p.count() < kLeast) return false;
  // A sign cannot say 0. Of rows that no batch touches, and of numbers that no loss depends on, as
  // the biases of keys, second moments are next to nothing: nothing else may be added to those.
  if (is_signs()) return !whole_yet && p.shape.size() > 1 && !p.of_labels();
  if (kind != Kind::low_rank) return true;
  // Of a matrix that is all there, where both sides together are less than half of it.
  return p.shape.size() > 1 && !p.sparse() &&
         2 * columns * (p.rows() + p.columns()) < p.rows() * p.columns();
}

int64_t ExchangeCode::sent(int64_t n) const {
  return std::clamp<int64_t>(std::llround(share * static_cast<double>(n)), 1, n);
}

std::optional<ExchangeCode> parse_exchange(const std::string& text) {
  if (text == "fp32") return ExchangeCode{};
  if (text == "bf16") return ExchangeCode{Kind::bf16};
  if (text == "bf16+feedback") return ExchangeCode{Kind::bf16, true};
  if (text == "int8") return ExchangeCode{Kind::int8};
  if (text == "onebit") return ExchangeCode{Kind::signs, true};
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const std::string_view name = std::string_view(text).substr(0, colon);
  const std::string_view rest = std::string_view(text).substr(colon + 1);
  if (name == "powersgd") {
    const auto columns = number_in<int64_t>(rest);
    if (!columns || *columns < 1 || *columns > kMostColumns) return std::nullopt;
    return ExchangeCode{Kind::low_rank, true, 0, *columns};
  }
  const auto share = number_in<double>(rest);
  if ((name != "topk" && name != "randomk") || !share || !(*share > 0 && *share < 1)) {
    return std::nullopt;
  }
  return ExchangeCode{name == "topk" ? Kind::top : Kind::some, true, *share};
}

std::string exchange_text(const ExchangeCode& code) {
  switch (code.kind) {
    case Kind::whole:
      return "fp32";
    case Kind::bf16:
      return code.feedback ? "bf16+feedback" : "bf16";
    case Kind::int8:
      return "int8";
    case Kind::top:
      return fmt::format("topk:{}", code.share);
    case Kind::some:
      return fmt::format("randomk:{}", code.share);
    case Kind::low_rank:
      return fmt::format("powersgd:{}", code.columns);
    case Kind::signs:
      return code.whole_yet ? "fp32 before onebit" : "onebit";
  }
  return "";
}

bool warms_up(const ExchangeCode& code) {
  return code.freezes() || (code.is_few() && code.share < kFirstShare);
}

std::vector<ExchangePhase> exchange_phases(const ExchangeCode& code, int64_t warmup) {
  std::vector<ExchangeCode> before;
  if (code.freezes()) before.push_back({.kind = Kind::signs, .whole_yet = true});
  ExchangeCode more = code;
  for (more.share = kFirstShare; code.is_few() && more.share > code.share;
       more.share *= kFirstShare) {
    before.push_back(more);
  }
  std::vector<ExchangePhase> phases;
  const int64_t parts = std::ssize(before);
  for (int64_t i = 0; i < parts && warmup > 0; ++i) {
    const int64_t begin = warmup * i / parts;
    if (begin < warmup * (i + 1) / parts) phases.push_back({begin, before[i]});
  }
  phases.push_back({phases.empty() ? 0 : warmup, code});
  return phases;
}

ExchangeCode exchange_after(const ExchangeCode& code, int64_t warmup, int64_t steps) {
  ExchangeCode found = code;
  for (const ExchangePhase& phase : exchange_phases(code, warmup)) {
    if (phase.begin <= steps) found = phase.code;
  }
  return found;
}

std::string rest_prefix(int group) { return fmt::format("{}{}.", kRest, group); }

std::optional<RestName> rest_in(const std::string& name) {
  const size_t digits = std::string_view(kRest).size(), dot = name.find('.');
  if (!name.starts_with(kRest) || dot == std::string::npos) return std::nullopt;
  const auto group = number_in<int>(std::string_view(name).substr(digits, dot - digits));
  if (!group || *group < 0 || name.substr(0, dot + 1) != rest_prefix(*group)) return std::nullopt;
  return RestName{*group, name.substr(dot + 1)};
}

}  // namespace ebb
