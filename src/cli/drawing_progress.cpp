#include "cli/drawing_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace ebb {

DrawingProgress::DrawingProgress(StatusLine& line, bool aside)
    : line_(line),
      aside_(aside),
      start_(std::chrono::steady_clock::now()),
      cadence_(std::chrono::seconds(aside ? 10 : 0)) {}

void DrawingProgress::show(const DrawingRecord& r) {
  const int64_t batches = (r.count + r.together - 1) / r.together;
  const auto all = static_cast<double>(batches * r.steps);
  const int64_t whole_batches = r.drawn / r.together;
  const auto done = static_cast<double>(whole_batches * r.steps + r.step);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  const bool last = done == all, plain = cadence_.due();
  if (last && !aside_) {
    line_.show({{fmt::format("{0}/{0} drawn", r.count), 1},
                {format_seconds(passed.count()) + " in all", 2}},
               plain, last);
    return;
  }
  line_.show({{fmt::format("{}/{} drawn", r.drawn, r.count), 1},
              {fmt::format("step {}/{} of the next {}", r.step, r.steps,
                           std::min(r.together, r.count - r.drawn)),
               3},
              {format_seconds(passed.count() / done * (all - done)) + " left", 2}},
             plain, false);
}

}  // namespace ebb
