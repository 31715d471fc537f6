#include "model/keep.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ebb {

const char* slot_name(Slot slot) {
  constexpr const char* kNames[kBlockSlots] = {
      "mod", "attn-in", "qkv", "qkv-normed", "attn", "proj", "x1", "mlp-in", "fc1", "gelu", "fc2"};
  return kNames[static_cast<int>(slot)];
}

std::string KeepSet::recomputed() const {
  if (empty()) return "all";
  std::string joined;
  for (int i = 0; i < kBlockSlots; ++i) {
    const auto t = static_cast<Slot>(i);
    if (has(t) || (t == Slot::normed && !has(Slot::qkv))) continue;
    joined += fmt::format("{}{}", joined.empty() ? "" : "+", slot_name(t));
  }
  return joined.empty() ? "none" : joined;
}

KeepSet KeepSet::all_but(const std::string& text, const std::string& where) {
  if (text == "none") return all();
  if (text == "all") return {};
  KeepSet kept = all();
  std::vector<std::string> known = {"none", "all"};
  for (int t = 0; t < kBlockSlots; ++t) known.emplace_back(slot_name(static_cast<Slot>(t)));
  for (const std::string& word : split(text, '+')) {
    const auto found = std::find(known.begin() + 2, known.end(), word);
    if (found == known.end()) {
      fail(Exit::usage,
           fmt::format("{}: found '{}', wanted none, all or tensors joined by +{}", where,
                       printable(word), did_you_mean(word, known)),
           "a block's tensors: mod attn-in qkv qkv-normed attn proj x1 mlp-in fc1 gelu fc2");
    }
    kept = kept.with(static_cast<Slot>(found - known.begin() - 2), false);
  }
  return kept;
}

Schedule plain_schedule(const std::vector<KeepSet>& keep) {
  Schedule schedule;
  const int depth = static_cast<int>(keep.size());
  for (int i = 0; i < depth; ++i) schedule.push_back({Action::Kind::forward, i, keep[i]});
  schedule.push_back({Action::Kind::turn, 0, {}});
  for (int i = depth - 1; i >= 0; --i) schedule.push_back({Action::Kind::backward, i, {}});
  return schedule;
}

std::vector<BlockChoice> block_choices(const Schedule& schedule, int64_t depth) {
  std::vector<BlockChoice> choices(depth);
  for (const Action& action : schedule) {
    if (action.kind != Action::Kind::forward) continue;
    choices[action.block].keep = action.keep;
    ++choices[action.block].forwards;
  }
  return choices;
}

}  // namespace ebb
