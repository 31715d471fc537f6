#include "model/tree.h"

#include "base/error.h"

namespace ebb {

Tree::Tree(Builder& b, Messages& messages, const StepSpec& step,
           const std::vector<ParamSpec>& specs)
    : Sums(b, messages, step, specs), specs_(specs), leaves_(step.leaves / step.place.data) {
  require(leaves_ * step.place.data == step.leaves, "step: {} leaves over {} groups", step.leaves,
          step.place.data);
  const std::vector<int> roots = owners(specs, step.place, Shard::grads);
  size_t next = 0;
  for (const ParamSpec& spec : specs) {
    if (spec.trained()) roots_[spec.name] = roots[next++];
  }
}

Purpose Tree::purpose(const ParamSpec& spec) const {
  return root(spec) == place_.rank ? Purpose::gradient : Purpose::exchange;
}

void Tree::complete(const ParamSpec& spec, Buf gradient) {
  arrive();
  Own& own = own_[spec.name];
  own.sums.push_back(gradient);
  for (int n = ++own.leaves; n % 2 == 0; n /= 2) {
    const Buf right = own.sums.back();
    own.sums.pop_back();
    add(spec, own.sums.back(), right);
  }
  if (own.leaves == leaves_) climb(spec, own.sums[0], 0);
}

// Whoever is nearer to the root adds; the other has done its part. Every rank sends a tensor once
// at most.
void Tree::climb(const ParamSpec& spec, Buf sum, int level) {
  if (1 << level >= place_.data) {
    is_whole(spec, sum);
    return;
  }
  const int root_group = place_.group_of(root(spec));
  const bool adds = ((root_group ^ place_.group()) >> level & 1) == 0;
  if (!adds) return messages_.send({spec.name, sum, neighbour(level), kPartialSums});
  const Buf coming = b_.declare_numbered(
      {"sum." + spec.name, spec.layer, Purpose::exchange, b_.type(sum), b_.shape(sum)});
  messages_.receive_begin({spec.name, coming, neighbour(level), kPartialSums});
  climbs_.push_back({&spec, sum, level, coming});
}

// What was on its way while the gradients since were made.
void Tree::arrive() {
  for (const Climb& c : std::exchange(climbs_, {})) {
    messages_.receive_end({c.spec->name, c.coming, neighbour(c.level), kPartialSums});
    add(*c.spec, c.sum, c.coming);
    climb(*c.spec, c.sum, c.level + 1);
  }
}

void Tree::finish() {
  while (!climbs_.empty()) arrive();
  if (!to_all() || place_.data == 1) return;
  for (const ParamSpec& spec : specs_) {
    if (!spec.trained() || !place_.has(spec.layer)) continue;
    if (root(spec) != place_.rank) {
      is_whole(spec, declare_whole(spec, own_.at(spec.name).sums[0]));
    }
    messages_.hand_on(spec.name, whole(spec), kFinishedSums, ring_from(root(spec)));
  }
}

}  // namespace ebb
