#include "sample/draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "formats/image.h"
#include "sample/font.h"

namespace ebb {

Drawer::Drawer(const PlanSet& plans, const SamplerSpec& spec, const DitConfig& config,
               const Device& device, RunMemory& memory, PeerLane* peers)
    : spec_(spec),
      config_(config),
      memory_(memory),
      start_(plans.at(kSamplerStart), device, memory),
      step_(plans.at(kSamplerProgram), device, memory),
      schedule_(sampler_schedule(spec)),
      labels_(config.classes > 0 ? spec.batch : 0) {
  if (peers != nullptr) step_.exchange_with(*peers);
}

Drawn Drawer::draw(int64_t count, const LabelOf& label_of, uint64_t seed, const Take& take,
                   const Stop& stop, const Watch& watch) {
  for (int64_t first = 0; first < count; first += spec_.batch) {
    const Share places{first, std::min(spec_.batch, count - first)};
    const Drawn drawn = draw_batch(places, label_of, seed, stop, watch);
    if (drawn != Drawn::all) return drawn;
    take(first, places.count, values());
  }
  return Drawn::all;
}

Drawn Drawer::draw_batch(Share places, const LabelOf& label_of, uint64_t seed, const Stop& stop,
                         const Watch& watch) {
  require(places.count >= 1 && places.count <= spec_.batch, "drawer: {} samples in a batch of {}",
          places.count, spec_.batch);
  const auto key = [&](Scalars scalars, int64_t i) {
    scalars.seed = seed;
    scalars.step = i;
    scalars.first_sample = places.first;
    return scalars;
  };
  for (int64_t s = 0; s < std::ssize(labels_); ++s) {
    labels_[s] = label_of(places.first + std::min(s, places.count - 1));
  }
  start_.run(key({}, 0));
  const Executor* last = &start_;
  for (int i = 0; i < spec_.steps; ++i) {
    if (stop()) return Drawn::stopped;
    // The output of one run is the input of the next; the two places may overlap.
    const Plan& from = last->plan();
    memory_.move(step_.plan(), step_.plan().program.at(kSampleX), from,
                 from.program.at(kSampleNext));
    if (!labels_.empty()) step_.set<int32_t>(kSampleY, labels_);
    step_.run(key(schedule_[i], i + 1));
    last = &step_;
    if (watch) watch(places.first, i + 1);
  }
  peak_bytes_ = std::max({peak_bytes_, start_.peak_bytes(), step_.peak_bytes()});
  float* drawn = values();
  if (drawn == copied_.data()) step_.get<float>(kSampleNext, copied_);
  const bool finite = std::all_of(drawn, drawn + places.count * sample_values(),
                                  [](float x) { return std::isfinite(x); });
  return finite ? Drawn::all : Drawn::not_finite;
}

float* Drawer::values() {
  const Plan& plan = step_.plan();
  auto* reached = reinterpret_cast<float*>(memory_.host(plan, plan.program.at(kSampleNext)).data());
  if (reached != nullptr) return reached;
  copied_.resize(static_cast<size_t>(spec_.batch * sample_values()));
  return copied_.data();
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
