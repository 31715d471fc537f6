// Work over threads. A task's result never depends on which thread runs it, nor on how many there
// are: sums that cross tasks go through partial results that are added in a fixed order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/threads.h"

namespace ebb::cpu {

// Elements: less is not worth waking a thread. Tests set it to 0, so that small cases are cut too.
inline int64_t serial_below = 16384;

// body(begin, end) over [0, count), cut at multiples of `grain`.
template <typename Body>
void parallel_range(int64_t count, int64_t grain, int64_t work_per_item, Body body) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t threads = std::min<int64_t>(team_threads(), grains);
  if (threads <= 1 || count * work_per_item < serial_below) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  auto share = [&](int self) {
    const int64_t begin = std::min(count, grains * self / threads * grain);
    const int64_t end = std::min(count, grains * (self + 1) / threads * grain);
    if (begin < end) body(begin, end);
  };
  on_team(static_cast<int>(threads), share);
}

// body(task, thread) for each task, handed out one at a time.
template <typename Body>
void parallel_tasks(int64_t tasks, Body body) {
  const int64_t threads = std::min<int64_t>(team_threads(), tasks);
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  auto some = [&](int self) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      body(task, self);
    }
  };
  on_team(static_cast<int>(threads), some);
}

}  // namespace ebb::cpu
