#include "sample/draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/image.h"
#include "run/executor.h"
#include "sample/font.h"

namespace ebb {

Drawer::Drawer(const PlanSet& plans, const SamplerSpec& spec, const DitConfig& config,
               const Device& device, RunMemory& memory)
    : plans_(plans), spec_(spec), config_(config), device_(device), memory_(memory) {}

Drawn Drawer::draw(int64_t count, const LabelOf& label_of, uint64_t seed, const Take& take,
                   const Stop& stop, const Watch& watch) {
  Executor start(plans_.at(kSamplerStart), device_, memory_);
  Executor step(plans_.at(kSamplerProgram), device_, memory_);
  const std::vector<Scalars> schedule = sampler_schedule(spec_);
  const int64_t each = config_.channels * config_.pixels();
  std::vector<float> copied;  // where the host does not reach the device's memory
  std::vector<int32_t> labels(config_.classes > 0 ? spec_.batch : 0);
  for (int64_t first = 0; first < count; first += spec_.batch) {
    const auto key = [&](Scalars scalars, int64_t i) {
      scalars.seed = seed;
      scalars.step = i;
      scalars.first_sample = first;
      return scalars;
    };
    for (size_t s = 0; s < labels.size(); ++s) {
      labels[s] = label_of(std::min(first + static_cast<int64_t>(s), count - 1));
    }
    start.run(key({}, 0));
    const Executor* last = &start;
    for (int i = 0; i < spec_.steps; ++i) {
      if (stop()) return Drawn::stopped;
      // The output of one run is the input of the next; the two places may overlap.
      const Plan& from = last->plan();
      memory_.move(step.plan(), step.plan().program.at(kSampleX), from,
                   from.program.at(kSampleNext));
      if (!labels.empty()) step.set<int32_t>(kSampleY, labels);
      step.run(key(schedule[i], i + 1));
      last = &step;
      if (watch) watch(first, i + 1);
    }
    peak_bytes_ = std::max({peak_bytes_, start.peak_bytes(), step.peak_bytes()});
    const int64_t drawn = std::min(spec_.batch, count - first);
    const auto* values = reinterpret_cast<const float*>(
        memory_.host(last->plan(), last->plan().program.at(kSampleNext)).data());
    if (values == nullptr) {
      copied.resize(spec_.batch * each);
      last->get<float>(kSampleNext, copied);
      values = copied.data();
    }
    if (!std::all_of(values, values + drawn * each, [](float x) { return std::isfinite(x); })) {
      return Drawn::not_finite;
    }
    take(first, drawn, values);
  }
  return Drawn::all;
}

void to_pixels(uint8_t* pixels, const float* values, int64_t channels, int64_t size) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < size * size; ++i) {
      const float value = std::clamp((values[c * size * size + i] + 1) * 127.5f, 0.0f, 255.0f);
      pixels[i * channels + c] = static_cast<uint8_t>(std::lround(value));
    }
  }
}

namespace {

constexpr int64_t kBorder = 2;
constexpr int64_t kWantedSide = 64;  // of a picture in the grid, at least about this
constexpr int64_t kTextZoom = 2;

// The space left of a grid for names of so many letters.
int64_t margin_of(int64_t letters) {
  return letters == 0 ? 0 : 2 * kBorder + letters * kTextZoom * (kGlyphWidth + 1);
}

}  // namespace

Grid::Grid(int64_t count, int64_t columns, int64_t size, int channels, int64_t letters)
    : columns_(columns),
      size_(size),
      letters_(letters),
      zoom_(std::max<int64_t>(1, kWantedSide / size)),
      side_(size * zoom_),
      margin_(margin_of(letters)),
      width_(margin_ + columns * (side_ + kBorder) + kBorder),
      height_((count + columns - 1) / columns * (side_ + kBorder) + kBorder),
      channels_(channels),
      pixels_(width_ * height_ * channels, 255) {}

int64_t Grid::bytes(int64_t count, int64_t columns, int64_t size, int channels, int64_t letters) {
  const int64_t side = size * std::max<int64_t>(1, kWantedSide / size) + kBorder;
  return ((count + columns - 1) / columns * side + kBorder) *
         (margin_of(letters) + columns * side + kBorder) * channels;
}

void Grid::name_row(int64_t row, const std::string& name) {
  const int64_t top = row * (side_ + kBorder) + kBorder + (side_ - kTextZoom * kGlyphHeight) / 2;
  int64_t left = 2 * kBorder;
  int64_t letter = 0;
  for (std::string_view rest = name; !rest.empty() && letter < letters_; ++letter) {
    const Glyph& glyph = next_glyph(rest);
    for (int64_t y = 0; y < kTextZoom * kGlyphHeight; ++y) {
      for (int64_t x = 0; x < kTextZoom * kGlyphWidth; ++x) {
        if (!glyph.is_set(x / kTextZoom, y / kTextZoom)) continue;
        const int64_t place = (top + y) * width_ + left + x;
        std::fill_n(&pixels_[place * channels_], channels_, uint8_t{0});
      }
    }
    left += kTextZoom * (kGlyphWidth + 1);
  }
}

void Grid::put(int64_t index, const uint8_t* picture) {
  const int64_t top = index / columns_ * (side_ + kBorder) + kBorder;
  const int64_t left = margin_ + index % columns_ * (side_ + kBorder) + kBorder;
  for (int64_t y = 0; y < side_; ++y) {
    uint8_t* out = &pixels_[((top + y) * width_ + left) * channels_];
    for (int64_t x = 0; x < side_; ++x) {
      std::memcpy(out + x * channels_, picture + (y / zoom_ * size_ + x / zoom_) * channels_,
                  channels_);
    }
  }
}

void Grid::write(const std::filesystem::path& path) const {
  write_png(path, pixels_.data(), width_, height_, channels_);
}

}  // namespace ebb
