// Which elements of a checkpoint's tensors survive: those of the structures that do.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "prune/structure.h"

namespace ebb {

// What a tensor of a checkpoint is: a parameter, or what the optimizer or the average keeps of one.
struct Role {
  const ParamSpec* param;
  std::string prefix;
  bool of_rows = false, of_columns = false;  // Adafactor's: a number for each row, or each column
  int64_t rank = 0;  // of a projector, or of the moments of what it leaves; 0: it is neither

  bool moment() const;
  bool mask() const;
  bool projector() const;
  // As files have it.
  Shape shape() const;
};
// By the tensors' names, in a checkpoint whose moments are of this rank. The parameters must
// outlive them.
std::map<std::string, Role> roles_of(const std::vector<ParamSpec>& params, int64_t galore_rank);

// Which numbers of a tensor stay, as rows and columns; nothing said of an axis: all of it.
struct Cut {
  int64_t rows, columns;
  std::optional<std::vector<int64_t>> kept_rows, kept_columns;

  bool whole() const { return !kept_rows && !kept_columns; }
  int64_t left_rows() const { return kept_rows ? std::ssize(*kept_rows) : rows; }
  int64_t left_columns() const { return kept_columns ? std::ssize(*kept_columns) : columns; }
};
// `block`: what survives of the tensor's block; null: it is of none.
Cut cut_tensor(const Role& role, const Belonging& place, const DitConfig& config,
               const Survivor* block);
Shape cut_shape(Shape shape, const Cut& cut);

// Where a tensor stands after the surgery: with which survivor of its block, if it is of one.
struct Staying {
  bool stays = true;
  const Survivor* block = nullptr;  // null: of no block
  size_t place = 0;                 // of that block in the pruned model
};
Staying staying(const Belonging& place, const Survivors& kept);

// One axis after the other, for looking at elements by number.
class CutElements {
 public:
  explicit CutElements(const Cut& cut);
  bool stays(int64_t i) const {
    return rows_[i / columns_.size()] && columns_[i % columns_.size()];
  }

 private:
  std::vector<char> rows_, columns_;
};

}  // namespace ebb
