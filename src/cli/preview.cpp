#include "cli/preview.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "sample/draw.h"

namespace ebb {

namespace {

constexpr int64_t kMostSamples = 64;
constexpr int64_t kMostValues = int64_t{1} << 27;  // of the whole grid: large samples are fewer
constexpr int64_t kMostOfAClass = 8;
constexpr int64_t kColumns = 8;
constexpr int64_t kNone = -1;

// `wanted` of 0 .. count-1 in equal steps; all of them if they are fewer.
std::vector<int64_t> spread(int64_t count, int64_t wanted) {
  std::vector<int64_t> picks;
  wanted = std::min(wanted, count);
  for (int64_t i = 0; i < wanted; ++i) picks.push_back(i * count / wanted);
  return picks;
}

// The samples of the grid, row by row. A class with too few leaves places free.
struct Layout {
  std::vector<int64_t> samples;
  int64_t columns = kColumns;
};

Layout layout_of(const Source& source) {
  const DataInfo& info = source.info();
  const int64_t most = std::clamp<int64_t>(kMostValues / source.sample_values(), 1, kMostSamples);
  if (info.classes == 0) return {spread(info.count, most)};
  std::vector<int64_t> shown;  // classes that have samples
  for (int64_t c = 0; c < info.classes; ++c) {
    if (info.class_counts[static_cast<size_t>(c)] > 0) shown.push_back(c);
  }
  const int64_t largest = *std::ranges::max_element(info.class_counts);
  const int64_t each =
      std::min(largest, std::clamp<int64_t>(most / std::ssize(shown), 1, kMostOfAClass));
  std::vector<std::vector<int64_t>> picks;  // of each class: its how-many-eth samples
  std::vector<int64_t> row_of(static_cast<size_t>(info.classes), kNone);
  for (const int64_t at : spread(std::ssize(shown), most / each)) {
    const auto c = static_cast<size_t>(shown[static_cast<size_t>(at)]);
    row_of[c] = std::ssize(picks);
    picks.push_back(spread(info.class_counts[c], each));
  }
  Layout layout{std::vector<int64_t>(picks.size() * static_cast<size_t>(each), kNone),
                each > 1 ? each : kColumns};
  std::vector<int64_t> seen(picks.size()), placed(picks.size());
  for (int64_t i = 0; i < info.count; ++i) {
    const int64_t row = row_of[static_cast<size_t>(source.label(i))];
    if (row == kNone) continue;
    const auto r = static_cast<size_t>(row);
    if (placed[r] < std::ssize(picks[r]) && seen[r] == picks[r][static_cast<size_t>(placed[r])]) {
      layout.samples[static_cast<size_t>(row * each + placed[r]++)] = i;
    }
    ++seen[r];
  }
  return layout;
}

void check_preview(const std::filesystem::path& path, const DataInfo& info) {
  if (path.extension() != ".png") {
    fail(Exit::usage, fmt::format("--out: found '{}', wanted a .png", printable(path.string())),
         "--out grid.png");
  }
  if (!info.pixels) {
    fail(Exit::usage, "--out: these are features, wanted pictures to show",
         "leave --out out, or give the folder of images");
  }
  if (info.height != info.width) {
    fail(Exit::usage,
         fmt::format("--out: found samples of {}x{}, wanted square ones, as the network sees them",
                     info.height, info.width),
         fmt::format("--image-size {}", std::min(info.height, info.width)));
  }
}

}  // namespace

std::vector<std::string> write_preview(const std::filesystem::path& path, const Source& source) {
  const DataInfo& info = source.info();
  check_preview(path, info);
  const Layout layout = layout_of(source);
  Grid grid(std::ssize(layout.samples), std::min(layout.columns, std::ssize(layout.samples)),
            info.height, static_cast<int>(info.channels));
  std::vector<uint8_t> planes(static_cast<size_t>(source.sample_values()));
  std::vector<uint8_t> picture(planes.size());
  std::vector<std::byte> scratch(static_cast<size_t>(source.scratch_bytes()));
  std::vector<std::string> notes;
  for (size_t place = 0; place < layout.samples.size(); ++place) {
    if (layout.samples[place] == kNone) continue;
    try {
      int32_t label = 0;
      source.load(reinterpret_cast<std::byte*>(planes.data()), &label, layout.samples[place],
                  scratch);
    } catch (const Error& error) {
      notes.emplace_back(error.what());
      continue;
    }
    for (size_t i = 0; i < planes.size(); ++i) {
      const auto plane = static_cast<size_t>(info.height * info.width);
      picture[i % plane * static_cast<size_t>(info.channels) + i / plane] = planes[i];
    }
    grid.put(static_cast<int64_t>(place), picture.data());
  }
  grid.write(path);
  return notes;
}

}  // namespace ebb
