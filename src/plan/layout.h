// How a run is laid out over ranks.
#pragma once

#include <optional>
#include <string>

#include "model/ranks.h"

namespace ebb {

struct Layout {
  int data = 1;    // groups of ranks that each take a share of every batch
  int pipe = 1;    // stages of a group, that each have some of the blocks
  int tensor = 1;  // ranks of a stage, that each have a part of its blocks

  int ranks() const { return data * pipe * tensor; }
  bool operator==(const Layout&) const = default;
};

inline constexpr int kMostRanks = 4096;

// "data=4", "pipe=2", "data=2,pipe=2,tensor=2"; "auto": none, for the planner to choose. Fails with
// Exit::usage.
std::optional<Layout> parse_layout(const std::string& text, const std::string& where);
std::string layout_text(const Layout& layout);
std::string layout_text(const RankPlace& place);

// "chain": 0, one sum in the order of the samples; "tree:8": the leaves of a tree of sums, a power
// of two. Fails with Exit::usage.
int parse_sum(const std::string& text, const std::string& where);

}  // namespace ebb
