// A run over several ranks, as each of them writes its program: which samples and which tensors are
// its own.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace ebb {

// What lies with one rank alone, its owner: nothing; or moments and average, and with them the
// gradients, whose sums end with their owner anyway, so that they are never all in one place.
enum class Shard : uint8_t { off, grads };

// Samples of a batch.
struct Share {
  int64_t first, count;
};

struct RankPlace {
  int ranks = 1, rank = 0;  // that each take a share of the batch

  bool alone() const { return ranks == 1; }
  bool first() const { return rank == 0; }
  bool last() const { return rank == ranks - 1; }
  int next() const { return (rank + 1) % ranks; }
  int before() const { return (rank + ranks - 1) % ranks; }
  // As equal as can be; the first ranks have one more. At least one sample each is the caller's.
  Share share(int64_t batch) const;
};

// The owner of each trained tensor, in their order: each rank has some that follow each other, and
// about as many numbers as every other.
std::vector<int> owners(const std::vector<ParamSpec>& specs, int ranks);

// The rank whose own tensors have the most numbers.
int fullest_rank(const std::vector<ParamSpec>& specs, int ranks);

// Channels, so that what is of one kind keeps its order and waits for no other.
enum Channel : int { kPartialSums, kFinishedSums, kNormSums, kWeights, kLosses };

}  // namespace ebb
