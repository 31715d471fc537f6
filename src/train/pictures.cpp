#include "train/pictures.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace ebb {

std::vector<int32_t> spread_classes(int64_t classes, int64_t most) {
  const int64_t count = std::clamp<int64_t>(classes, 1, most);
  std::vector<int32_t> spread;
  for (int64_t i = 0; i < count; ++i) {
    spread.push_back(static_cast<int32_t>(i * std::max<int64_t>(1, classes) / count));
  }
  return spread;
}

std::string afford_pictures(TrainOptions& o, const PicturesGiven& given, const PlannedRun& planned,
                            const Machine& machine) {
  if (!planned.sampler || (given.classes && given.each)) return "";
  const int64_t between = o.steps > 0 ? std::min(o.sample_every, o.steps) : o.sample_every;
  const double step_seconds = static_cast<double>(between) * planned.seconds;
  const double most = std::max(kDrawingShare * step_seconds, kDrawingGrace);
  const auto wanted = static_cast<int64_t>(o.sample_classes.size());
  const auto seconds = [&](int64_t classes, int64_t each) {
    return drawing_seconds(o.config, *planned.sampler, classes * each, machine);
  };
  int64_t classes = wanted, each = o.samples_each;
  while (each > 1 && !given.each && seconds(classes, each) > most) each -= (each + 7) / 8;
  while (classes > 1 && !given.classes && seconds(classes, each) > most) {
    classes -= (classes + 7) / 8;
  }
  // Who says how many, or of what, wants some.
  const bool affordable = seconds(classes, each) <= most || given.classes || given.each;
  if (affordable && classes == wanted && each == o.samples_each) return "";
  const std::string why =
      fmt::format("{:.0f} % of the {} between them; --count and --sample-classes say otherwise",
                  100 * kDrawingShare, format_seconds(step_seconds));
  if (!affordable) {
    o.sample_every = 0;
    o.sampler.reset();
    return fmt::format("pictures: none, for {} would take {}, more than {}", classes * each,
                       format_seconds(seconds(classes, each)), why);
  }
  const std::string fewer =
      fmt::format("pictures: {} instead of {}, {} of each of {} class{}", classes * each,
                  wanted * o.samples_each, each, classes, classes == 1 ? "" : "es");
  o.samples_each = each;
  if (classes < wanted) o.sample_classes = spread_classes(o.config.classes, classes);
  o.sampler->batch = std::min(planned.sampler->batch, classes * each);
  return fmt::format("{}, to stay within {}", fewer, why);
}

}  // namespace ebb
