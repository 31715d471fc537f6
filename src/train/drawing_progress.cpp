#include "train/drawing_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace ebb {

DrawingProgress::DrawingProgress(StatusLine& line, int64_t count, const SamplerSpec& spec,
                                 bool aside)
    : line_(line),
      count_(count),
      spec_(spec),
      aside_(aside),
      start_(std::chrono::steady_clock::now()),
      cadence_(std::chrono::seconds(aside ? 10 : 0)) {}

void DrawingProgress::show(int64_t drawn, int step) {
  const int64_t batches = (count_ + spec_.batch - 1) / spec_.batch;
  const auto all = static_cast<double>(batches * spec_.steps);
  const int64_t done_batches = drawn / spec_.batch;
  const auto done = static_cast<double>(done_batches * spec_.steps + step);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  const bool last = done == all, plain = cadence_.due();
  if (last && !aside_) {
    line_.show({{fmt::format("{0}/{0} drawn", count_), 1},
                {format_seconds(passed.count()) + " in all", 2}},
               plain, last);
    return;
  }
  line_.show({{fmt::format("{}/{} drawn", drawn, count_), 1},
              {fmt::format("step {}/{} of the next {}", step, spec_.steps,
                           std::min(spec_.batch, count_ - drawn)),
               3},
              {format_seconds(passed.count() / done * (all - done)) + " left", 2}},
             plain, false);
}

}  // namespace ebb
