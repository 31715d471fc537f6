// From amounts and scores to the structures that survive. Reads nothing and writes nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "prune/scores.h"
#include "prune/structure.h"

namespace ebb {

// How much is to be removed, as torch.nn.utils.prune has it: a share in (0,1), or a number of
// structures from 1 on.
struct Amount {
  double share = 0;
  int64_t number = 0;
  std::string text;  // as it was given

  bool given() const { return share > 0 || number > 0; }
  // Of so many: a share is rounded as Python's round() does, half to even.
  int64_t of(int64_t count) const;
};

// "0.2" is a share, "3" a number; what is neither is Exit::usage, naming `where`.
Amount parse_amount(const std::string& text, const std::string& where);

// Within each block by itself, or over the whole model.
enum class Scope : uint8_t { block, model };

struct PruneRequest {
  Amount heads, mlp, blocks;
  Scope scope = Scope::block;
  // MLP widths are multiples of it where they change: others would cost as much as the next one.
  int64_t panel = 1;
  // Within blocks: amounts are of so many, some of which may be gone already. Empty: of what is
  // there.
  std::vector<BlockShape> begun = {};

  const Amount& of(Structure kind) const { return kind == Structure::head ? heads : mlp; }
};

struct Selection {
  Survivors kept;
  std::vector<std::string> notes;  // where it is not what was asked for to the letter
};

// Blocks go first, of which the first and the last stay; then heads and MLP units of those that are
// left, each of which keeps at least one head and one panel. Fails with Exit::usage, naming the
// flag, where more is asked for than there is to remove.
Selection select(const DitConfig& config, const Scores& scores, const PruneRequest& request);

// What goes together in one step towards a smaller model: a head, or as many MLP units as leave a
// width that is a multiple of the panel.
struct Removal {
  Structure kind;
  size_t place;  // in the survivors
  std::vector<int64_t> which;
};

// Everything that may go, what matters least first. Over the model: by score, each parameter
// counting alike; scores that are not comparable are measured by the mean of their block and kind.
// Within blocks: by the share of its kind that a block has then lost, so that all shrink alike.
std::vector<Removal> removal_order(const DitConfig& config, const Survivors& kept,
                                   const Scores& scores, Scope scope, int64_t panel);

// What is left when those of the order that are marked are gone.
Survivors without(const Survivors& kept, const std::vector<Removal>& order,
                  const std::vector<bool>& gone);

// The fewest removals of the order after which `fits`: bisection along the order, which asks about
// both neighbours of its answer. What was removed is then gone through from the most important on,
// and of each kind put back while it still fits. Nothing: not even all of them are enough.
std::optional<Survivors> remove_until(const Survivors& kept, const std::vector<Removal>& order,
                                      const std::function<bool(const Survivors&)>& fits);

}  // namespace ebb
