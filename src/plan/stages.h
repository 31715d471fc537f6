// A written step, looked at stage by stage: for profile.cpp and keep_options.cpp.
#pragma once

#include <functional>
#include <vector>

#include "plan/machine.h"
#include "plan/profile.h"

namespace ebb {

// Bytes alive at each op, and across the boundary before it, of what counts.
class LiveBytes {
 public:
  using Counts = std::function<bool(const Buffer& b)>;  // asked of those that are not resident
  LiveBytes(const Program& program, const Limits& limits, const Counts& counts);

  // Alive on both sides of the boundary before `op`.
  int64_t across(int op) const { return across_[op]; }
  int64_t most(int begin, int end) const;

 private:
  std::vector<int64_t> at_, across_;
};

// A step's marks, stage by stage. One sequence of stages for each pass, and batch by batch for each
// part of the batch. Memory is looked at in one of them: the first part is the largest, and the
// second of two passes, which is the one that updates.
class Stages {
 public:
  Stages(const Program& program, int64_t stages, bool two_passes, const Machine& machine,
         const LiveBytes::Counts& counts);

  Stage stage(int64_t index) const;
  int64_t own_bytes_of(int64_t index) const {
    return own_[marks_[index + 1]] - own_[marks_[index]];
  }
  int64_t across(int64_t index) const { return live_.across(seen(index)); }
  int64_t most_before(int64_t index) const { return live_.most(seen(0), seen(index)); }

 private:
  int seen(int64_t index) const { return marks_[first_seen_ + index]; }
  // An update mark behind the whole sequences.
  size_t extra() const { return (marks_.size() - 1) % stages_ == 0 ? 0 : 1; }
  std::vector<int> marks_;
  int64_t stages_;
  int64_t first_seen_;
  LiveBytes live_;
  ProgramTime time_;
  std::vector<int64_t> own_;
};

// The shapes of block that occur, and which one each block has. Of very many, those between two of
// a grid count as the larger.
struct Shapes {
  std::vector<BlockShape> all;
  std::vector<int> at;  // by block

  explicit Shapes(const DitConfig& config);

  static BlockShape largest(const std::vector<BlockShape>& blocks);  // at least as large as any

 private:
  void sort_in(const std::vector<BlockShape>& blocks);
};

}  // namespace ebb
