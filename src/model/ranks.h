// A run over several ranks, as each of them writes its program: which samples, which blocks and
// which tensors are its own.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace ebb {

// What lies with one rank alone, its owner: nothing; moments and average, and with them the
// gradients, whose sums end with their owner anyway, so that they are never all in one place; or
// the weights too, which every layer is then brought when it needs them.
enum class Shard : uint8_t { off, grads, weights };

// Samples of a batch.
struct Share {
  int64_t first, count;
};

// One of `count` as equal as can be. Those of a multiple of the count lie within them.
Share nth_share(int64_t batch, int64_t n, int64_t count);

// Ranks in groups that each take a share of the batch; those of a group are in the stages of a
// pipeline, which each have some of the blocks, one after the other; those of a stage each have a
// part of its blocks: some heads and some columns of the MLP (model/slices.h). Parts follow each
// other in rank, then stages.
struct RankPlace {
  int data = 1, pipe = 1;  // groups; stages of each
  int rank = 0;
  std::vector<int64_t> cuts = {};  // the first block of each stage after the first
  int tensor = 1;                  // parts of a stage

  int ranks() const { return data * pipe * tensor; }
  bool alone() const { return ranks() == 1; }
  int group_of(int other) const { return other / (pipe * tensor); }
  int stage_of(int other) const { return other / tensor % pipe; }
  int part_of(int other) const { return other % tensor; }
  int group() const { return group_of(rank); }
  int stage() const { return stage_of(rank); }
  int part() const { return part_of(rank); }
  bool first_stage() const { return stage() == 0; }
  bool last_stage() const { return stage() == pipe - 1; }
  bool first_group() const { return group() == 0; }
  bool last_group() const { return group() == data - 1; }
  // The rank that has the same part of the blocks of another stage or group, and which has another
  // part of the same.
  int at(int group, int stage) const { return (group * pipe + stage) * tensor + part(); }
  int in_stage(int other) const { return at(group(), other); }
  int of_part(int other) const { return rank - part() + other; }
  // The rank that has this one's blocks in another group; groups stand in a ring.
  int in_group(int other) const { return at((other + data) % data, stage()); }

  // As equal as can be. At least one sample each is the caller's.
  Share share(int64_t batch) const { return nth_share(batch, group(), data); }
  // Embedding: the first; final layer: the last.
  int stage_of(const std::string& layer) const;
  bool has(const std::string& layer) const { return stage_of(layer) == stage(); }
  // The blocks of this stage: from, and up to.
  int64_t first_block() const { return first_stage() ? 0 : cuts[stage() - 1]; }
  int64_t end_block(int64_t depth) const { return last_stage() ? depth : cuts[stage()]; }
};

// The rank that updates each trained tensor, or this rank's part of it, in their order. Without
// sharding every group does: it is the one in this rank's own group. Each rank has some that follow
// each other; with sharding, of a stage's tensors about as many numbers as any other rank of that
// stage.
std::vector<int> owners(const std::vector<ParamSpec>& specs, const RankPlace& place, Shard shard);

// The squared norms of a step's gradients, in the order in which they are added: of each trained
// tensor, made by the rank that owns it; of what is cut into parts, those of each part by itself,
// behind all others.
struct NormSlot {
  size_t spec;  // among all of the model
  int part, rank;
};
std::vector<NormSlot> norm_slots(const std::vector<ParamSpec>& specs, const RankPlace& place,
                                 Shard shard);

// Channels, so that what is of one kind keeps its order and waits for no other.
enum Channel : int {
  kPartialSums,
  kFinishedSums,
  kNormSums,
  kWeights,
  kLosses,
  kSamples,
  kActivations,
  kActivationGradients,
  kPartialActivations,
  kWholeActivations,
};

}  // namespace ebb
