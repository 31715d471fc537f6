// Runs a sampler in an arena, and turns what comes out into pictures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "model/sampler.h"
#include "run/run_memory.h"

namespace ebb {

enum class Drawn { all, stopped, not_finite };

class Drawer {
 public:
  // `plans` has those of sampler_programs(). All must outlive it; the memory holds the weights.
  Drawer(const PlanSet& plans, const SamplerSpec& spec, const DitConfig& config,
         const Device& device, RunMemory& memory);

  // Draws `count` samples, a whole batch at a time (the last one filled up and cut).
  // take(first, count, values): (count, C, S, S) of the samples first .. first + count - 1; it is
  // called in order, and the values are gone when it returns. A sample is a function of the seed,
  // its place and its label; another batch size changes its last digits only.
  // stop() is asked before every call of the network; what is not finite is not given to take().
  using LabelOf = std::function<int32_t(int64_t place)>;
  using Take = std::function<void(int64_t first, int64_t count, const float* values)>;
  using Stop = std::function<bool()>;
  // watch(samples drawn, steps done of the next ones), after every step of the network.
  using Watch = std::function<void(int64_t drawn, int step)>;
  Drawn draw(
      int64_t count, const LabelOf& label_of, uint64_t seed, const Take& take,
      const Stop& stop = [] { return false; }, const Watch& watch = {});

  int64_t peak_bytes() const { return peak_bytes_; }  // of the arena, as drawn

 private:
  const PlanSet& plans_;
  const SamplerSpec& spec_;
  const DitConfig& config_;
  const Device& device_;
  RunMemory& memory_;
  int64_t peak_bytes_ = 0;
};

// (C, S, S) in [-1, 1] -> (S, S, C) bytes.
void to_pixels(uint8_t* pixels, const float* values, int64_t channels, int64_t size);

// A grid of equal pictures, `columns` wide, with a thin border; small pictures are drawn larger.
// Names of up to `letters` characters can stand to the left of its rows.
class Grid {
 public:
  Grid(int64_t count, int64_t columns, int64_t size, int channels, int64_t letters = 0);
  static int64_t bytes(int64_t count, int64_t columns, int64_t size, int channels,
                       int64_t letters = 0);
  void put(int64_t index, const uint8_t* picture);  // (S, S, C)
  void name_row(int64_t row, const std::string& name);
  void write(const std::filesystem::path& path) const;

 private:
  int64_t columns_, size_, letters_, zoom_, side_, margin_, width_, height_;
  int channels_;
  std::vector<uint8_t> pixels_;
};

}  // namespace ebb
