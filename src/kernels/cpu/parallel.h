// Work over threads. A task's result never depends on which thread runs it, nor on how many there
// are: sums that cross tasks go through partial results that are added in a fixed order.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ebb::cpu {

inline constexpr int64_t kSerialBelow = 16384;  // elements: less is not worth waking a thread

// body(begin, end) over [0, count), cut at multiples of `grain`.
template <typename Body>
void parallel_range(int64_t count, int64_t grain, int64_t work_per_item, Body body) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t threads = std::min<int64_t>(omp_get_max_threads(), grains);
  if (threads <= 1 || count * work_per_item < kSerialBelow) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    const int64_t self = omp_get_thread_num();
    const int64_t begin = std::min(count, grains * self / threads * grain);
    const int64_t end = std::min(count, grains * (self + 1) / threads * grain);
    if (begin < end) body(begin, end);
  }
}

// body(task, thread) for each task, handed out one at a time.
template <typename Body>
void parallel_tasks(int64_t tasks, Body body) {
  const int64_t threads = std::min<int64_t>(omp_get_max_threads(), tasks);
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast <int>(threads))
  for (int64_t task = 0; task < tasks; ++task) body(task, omp_get_thread_num());
}

}  // namespace ebb::cpu
