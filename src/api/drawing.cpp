#include "api/drawing.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace ebb {

namespace {

int32_t label_at(int64_t place, const DitConfig& config, const DrawingCalls& calls) {
  const int32_t label = calls.label ? calls.label(place) : 0;
  if (label < 0 || label >= config.classes) {
    fail(Exit::usage,
         fmt::format("draw: found label {} for sample {}, wanted 0 to {}", label, place,
                     config.classes - 1),
         "labels are those of the training data");
  }
  return label;
}

}  // namespace

bool draw_with(const Draw& draw, const DitConfig& config, const DrawingCalls& calls,
               const std::string& where, const std::string& hint) {
  const Drawn drawn = draw([&](int64_t place) { return label_at(place, config, calls); },
                           [&](int64_t first, int64_t count, const float* values) {
                             if (calls.take) calls.take(first, count, values);
                           },
                           [&] { return calls.stop && calls.stop(); },
                           [&](int64_t done, int step) {
                             if (calls.watch) calls.watch(done, step);
                           });
  if (drawn == Drawn::not_finite) {
    fail(Exit::numbers, where + ": what the model draws is not finite", hint);
  }
  return drawn == Drawn::all;
}

std::vector<float> draw_all(std::span<const int32_t> labels, const DitConfig& config,
                            const std::function<void(const DrawingCalls& calls)>& draw) {
  const int64_t each = config.channels * config.pixels();
  std::vector<float> all(labels.size() * each);
  DrawingCalls calls;
  calls.label = [&](int64_t place) { return labels[place]; };
  calls.take = [&](int64_t first, int64_t count, const float* values) {
    std::copy_n(values, count * each, all.begin() + first * each);
  };
  draw(calls);
  return all;
}

}  // namespace ebb
