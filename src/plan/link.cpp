#include "plan/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

namespace {

struct Unit {
  const char* name;
  double factor;
};

// Ascending.
constexpr Unit kRates[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}};
constexpr Unit kTimes[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

// Beyond these a sum of many transfers is no number any more.
constexpr std::pair<double, double> kBitRange = {1, 1e18}, kSecondRange = {1e-12, 1e6};

constexpr const char* kExample =
    "write the bits per second and the time of a message: --link 100G,2us, or 1G,0.1ms";

template <size_t N>
double parse_unit(std::string_view text, const Unit (&units)[N], std::pair<double, double> range,
                  const std::string& where, const char* what) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(end - text.data());
  const auto* found = std::find_if(std::begin(units), std::end(units),
                                   [&](const Unit& u) { return unit == u.name; });
  const double value = found == std::end(units) ? 0 : number * found->factor;
  // Not a number is in no range.
  if (problem != std::errc() || !(value >= range.first && value <= range.second)) {
    fail(Exit::usage, fmt::format("{}: '{}' is not {}", where, printable(text), what), kExample);
  }
  return value;
}

template <size_t N>
const Unit& unit_of(double value, const Unit (&units)[N]) {
  const Unit* best = &units[0];
  for (const Unit& unit : units) {
    if (value >= unit.factor) best = &unit;
  }
  return *best;
}

template <size_t N>
std::string with_unit(double value, const Unit (&units)[N], int digits) {
  const Unit& unit = unit_of(value, units);
  return fmt::format("{:.{}g}{}", value / unit.factor, digits, unit.name);
}

// "2.1 G", "60 us".
template <size_t N>
std::string in_words(double value, const Unit (&units)[N]) {
  const Unit& unit = unit_of(value, units);
  const double number = value / unit.factor;
  return fmt::format("{:.{}f} {}", number, number < 9.95 ? 1 : 0, unit.name);
}

}  // namespace

double Link::most_rate(int64_t bytes) const {
  const auto piece = static_cast<double>(piece_bytes);
  const double under_way = pieces_at_once * piece;
  if (static_cast<double>(bytes) <= under_way) return bytes_per_second;
  return std::min(bytes_per_second, under_way / (latency_seconds + piece / bytes_per_second));
}

double Link::seconds(int64_t bytes) const {
  return latency_seconds + static_cast<double>(bytes) / most_rate(bytes);
}

Link parse_link(const std::string& text, const std::string& where) {
  const std::vector<std::string> parts = split(text, ',');
  if (parts.size() != 2) {
    fail(Exit::usage, fmt::format("{}: '{}' is not a rate and a latency", where, printable(text)),
         kExample);
  }
  Link link;
  link.bytes_per_second =
      parse_unit(parts[0], kRates, kBitRange, where, "a rate in bits per second") / 8;
  link.latency_seconds = parse_unit(parts[1], kTimes, kSecondRange, where, "a latency");
  return link;
}

std::string link_text(const Link& link, int digits) {
  return with_unit(8 * link.bytes_per_second, kRates, digits) + "," +
         with_unit(link.latency_seconds, kTimes, digits);
}

std::string rate_words(double bits_per_second) { return in_words(bits_per_second, kRates) + "b/s"; }

std::string link_words(const Link& link) {
  return fmt::format("{}B/s, {}", in_words(link.bytes_per_second, kRates),
                     in_words(link.latency_seconds, kTimes));
}

}  // namespace ebb
