// What the entries of the table of techniques are made with, and the entries themselves.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "plan/techniques.h"

namespace ebb {

inline constexpr const char* kAuto = "auto";

// Words that each stand for a value; kAuto for none.
template <typename T>
using Words = std::vector<std::pair<std::string, T>>;

template <typename T>
void decide_by(const Words<T>& words, std::optional<T> Decisions::*member, Technique& t) {
  t.values = kAuto;
  for (const auto& [name, value] : words) t.values += "|" + name;
  t.decide = [=, values = t.values](Decisions& d, const std::string& word,
                                    const std::string& where) {
    d.*member = std::nullopt;
    if (word == kAuto) return;
    for (const auto& [name, value] : words) {
      if (word == name) d.*member = value;
    }
    if (d.*member) return;
    fail(Exit::usage, fmt::format("{}: found '{}', wanted {}{}", where, printable(word), values,
                                  did_you_mean(word, split(values, '|'))));
  };
  t.decided = [=](const Decisions& d) -> std::string {
    for (const auto& [name, value] : words) {
      if (d.*member == value) return name;
    }
    return kAuto;
  };
}

// One choice for each of `values`, or the one decided on.
template <typename T>
std::vector<Choices> each_of(const Choices& before, const std::vector<T>& values,
                             const std::optional<T>& decided, T& (*of)(Choices&)) {
  std::vector<Choices> all;
  for (const T& value : decided ? std::vector<T>{*decided} : values) {
    Choices made = before;
    of(made) = value;
    all.push_back(std::move(made));
  }
  return all;
}

// ---- the entries: exact ones, those that store numbers in fewer bits, and the optimizer

Technique recompute_technique();
Technique micro_batches_technique();
Technique order_technique();
Technique release_technique();
Technique offload_technique();
Technique shard_technique();
Technique stage_order_technique();
Technique tensor_technique();
Technique tokens_technique();
Technique label_rows_technique();
Technique exchange_technique();
// Those that words of --allow stand for, and those that plans tell of.
std::vector<ExchangeCode> codes_to_allow();
std::vector<ExchangeCode> codes_to_tell();
Technique precision_technique();
Technique gradients_technique();
Technique galore_technique();
Technique moments_technique();
Technique average_technique();
Technique optimizer_technique();

}  // namespace ebb
