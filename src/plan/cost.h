// What a program costs in time, at rates measured on this machine.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "program/program.h"

namespace ebb {

// One measurement. x and y are the sizes that the time of its kind depends on: rows and weights of
// a linear layer (more inputs than outputs: a kind of its own, "linear tall"); tokens and head
// width of attention, in seconds for one token of one head; else the bytes moved. What is stored in
// fewer bits is a kind of its own too, "linear narrow", and so is what ends with GELU or its slope,
// "linear ended".
struct CostPoint {
  std::string kind;
  double x = 0, y = 0, seconds = 0;
  bool operator==(const CostPoint&) const = default;
};

CostPoint cost_point(const OpParams& params, double seconds);

// A machine's measurements, as they are cached.
struct Calibration {
  std::string machine;
  std::vector<CostPoint> points;
  // What whole steps took since, over what the points say of them: the last few.
  std::vector<double> paces = {};
  bool operator==(const Calibration&) const = default;
};

// Bytes of everything that the op reads and writes; of its updates twice.
int64_t bytes_moved(const OpParams& params);

class CostModel {
 public:
  // Without measurements: fixed rates of a middling machine, the same everywhere.
  CostModel() = default;
  explicit CostModel(const Calibration& calibration);

  // The median of the calibration's paces, which all ops' seconds are multiplied by; 1 without any.
  double pace() const { return pace_; }

  // Between measured sizes a straight line, beyond them in proportion. Never less for more rows,
  // tokens or bytes. Kinds that were not measured cost what they would without measurements. A
  // transfer takes none: its lane works beside the ops; nor do samples, which are made meanwhile.
  double seconds(const OpParams& params) const;

 private:
  struct Line {  // the points of one y
    double y;
    std::vector<std::pair<double, double>> points;  // x, seconds; both grow
    double at(double x) const;
  };
  using Table = std::vector<Line>;  // by growing y

  double op_seconds(const OpParams& params) const;
  double table_seconds(const OpParams& params, size_t table) const;

  double pace_ = 1;
  std::array<Table, 8 * std::variant_size_v<OpParams>> tables_;  // by kind and variant
};

}  // namespace ebb
