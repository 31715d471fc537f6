// Techniques by the words that users have for them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/resolve.h"
#include "base/error.h"
#include "base/text.h"

namespace ebb {

void decide(Decisions& decisions, const std::string& flag, const std::string& word) {
  std::vector<std::string> known;
  for (const Technique& t : techniques()) {
    if (!t.decide) continue;
    if (flag == t.flag) return t.decide(decisions, word, "--" + flag);
    known.emplace_back(t.flag);
  }
  fail(Exit::usage,
       fmt::format("techniques: found '{}', wanted one of {}{}", printable(flag),
                   fmt::join(known, ", "), did_you_mean(flag, known)),
       "leave it out: what is not decided is the planner's");
}

void allow(Decisions& decisions, const std::string& word, const std::string& where) {
  std::vector<std::string> known;
  for (const AllowWord& each : allow_words()) known.emplace_back(each.word);
  if (std::find(known.begin(), known.end(), word) == known.end()) {
    fail(Exit::usage, fmt::format("{}: found '{}', wanted some of {}{}", where, printable(word),
                                  fmt::join(known, ", "), did_you_mean(word, known)));
  }
  decisions.allowed.insert(word);
}

Decisions decisions_of(const Training& training) {
  Decisions made;
  for (const auto& [flag, word] : training.techniques) decide(made, flag, word);
  for (const std::string& word : training.allow) allow(made, word, "--allow");
  return made;
}

}  // namespace ebb
