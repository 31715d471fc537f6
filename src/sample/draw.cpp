#include "sample/draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/image.h"
#include "run/executor.h"

namespace ebb {

std::vector<Program> sampler_programs(const DitConfig& config, const SamplerSpec& spec,
                                      const Device& device) {
  check_countable(config, spec.batch);
  std::vector<Program> programs;
  programs.push_back(write_sampler_start(config, spec.batch, device));
  programs.push_back(write_sampler_step(config, spec, device));
  return programs;
}

Drawer::Drawer(const Plan& start, const Plan& step, const SamplerSpec& spec,
               const DitConfig& config, const Device& device, Memory memory)
    : start_(start), step_(step), spec_(spec), config_(config), device_(device), memory_(memory) {}

void Drawer::draw(int64_t count, const LabelOf& label_of, uint64_t seed, const Take& take,
                  const Watch& watch) {
  Executor start(start_, device_, memory_);
  Executor step(step_, device_, memory_);
  const int64_t values = spec_.batch * config_.channels * config_.pixels();
  const std::vector<Scalars> schedule = sampler_schedule(spec_);
  for (int64_t first = 0; first < count; first += spec_.batch) {
    const auto key = [&](Scalars scalars, int64_t i) {
      scalars.seed = seed;
      scalars.step = i;
      scalars.first_sample = first;
      return scalars;
    };
    start.run(key({}, 0));
    // Between runs the host moves the output of one to the input of the next; the two places may
    // overlap.
    const float* from = start.host(kSampleNext);
    for (int i = 0; i < spec_.steps; ++i) {
      std::memmove(step.host(kSampleX), from, values * sizeof(float));
      if (config_.classes > 0) {
        for (int64_t s = 0; s < spec_.batch; ++s) {
          step.host<int32_t>(kSampleY)[s] = label_of(std::min(first + s, count - 1));
        }
      }
      step.run(key(schedule[i], i + 1));
      from = step.host(kSampleNext);
      if (watch) watch(first, i + 1);
    }
    take(first, std::min(spec_.batch, count - first), from);
  }
  peak_bytes_ = std::max({peak_bytes_, start.peak_bytes(), step.peak_bytes()});
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

}  // namespace

Grid::Grid(int64_t count, int64_t columns, int64_t size, int channels)
    : columns_(columns),
      size_(size),
      zoom_(std::max<int64_t>(1, kWantedSide / size)),
      side_(size * zoom_),
      width_(columns * (side_ + kBorder) + kBorder),
      height_((count + columns - 1) / columns * (side_ + kBorder) + kBorder),
      channels_(channels),
      pixels_(width_ * height_ * channels, 255) {}

int64_t Grid::bytes(int64_t count, int64_t columns, int64_t size, int channels) {
  const int64_t side = size * std::max<int64_t>(1, kWantedSide / size) + kBorder;
  return ((count + columns - 1) / columns * side + kBorder) * (columns * side + kBorder) * channels;
}

void Grid::put(int64_t index, const uint8_t* picture) {
  const int64_t top = index / columns_ * (side_ + kBorder) + kBorder;
  const int64_t left = index % columns_ * (side_ + kBorder) + kBorder;
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
