// Rows of unit length, each at right angles to all others. Lengths and products of rows are summed
// in double, in an order that no thread changes.
#pragma once

#include <cstdint>
#include <functional>

namespace ebb::cpu {

// What stands in for a row that the ones before it leave nothing of: tries in turn, until one is
// left something of. The last that it gives must always be.
using NextRow = std::function<void(float* row)>;

// rows (count, n), count <= n. Gram and Schmidt's way, twice. scratch: `count` doubles.
void make_orthonormal(float* rows, int64_t count, int64_t n, double* scratch, const NextRow& next);

}  // namespace ebb::cpu
