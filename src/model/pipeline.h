// A stage of a pipeline: the order of its work, and what it exchanges with its neighbours. Emits;
// runs nothing.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "model/dit.h"
#include "model/messages.h"
#include "model/step.h"

namespace ebb {

// A micro-batch through the stage's blocks: forward; backward, for the stage before; or what is
// left of that, the gradients of matrices, which nobody waits for.
struct StageWork {
  enum class Kind : uint8_t { forward, backward, matrices };
  Kind kind;
  size_t part;
};

// One forward, one backward in turn (1F1B), after as many forwards as there are stages behind this
// one: so many micro-batches and one wait for their way back. Micro-batches go backward in their
// order: sums have the bits of one rank. `late`: matrices are left for where a stage would wait
// (ZB-H1), by as many micro-batches as there are stages before this one, so that every stage has as
// many in its hands; but all of a segment before the next one goes backward, for its sums begin
// anew. `late_ahead`: every stage but the last is a micro-batch further ahead, so that one which is
// late for once holds up nobody.
struct StageParts {
  size_t count;
  std::function<bool(size_t part)> begins_segment;
  StageOrder order;
};
std::vector<StageWork> stage_order(const RankPlace& place, const StageParts& parts);

// What comes from the neighbours for each piece of work, asked for one piece ahead.
class Boundaries {
 public:
  // All must outlive it.
  Boundaries(Builder& b, Messages& messages, const RankPlace& place)
      : b_(b), messages_(messages), place_(place) {}

  // Begins to receive what a piece of work needs from another stage, if anything.
  void expect(const StageWork& work, const Dit& model);
  // What was expected the longest, now there.
  Dit::Embedded input();                            // from the stage before
  Dit::Gradients gradients();                       // from the stage behind
  void pass(const Dit::Embedded& output);           // to the stage behind
  void pass_back(const Dit::Gradients& gradients);  // to the stage before

 private:
  int before() const { return place_.in_stage(place_.stage() - 1); }
  int behind() const { return place_.in_stage(place_.stage() + 1); }

  Builder& b_;
  Messages& messages_;
  const RankPlace& place_;
  std::deque<Dit::Embedded> inputs_;
  std::deque<Dit::Gradients> gradients_;
};

}  // namespace ebb
