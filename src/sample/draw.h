// Runs a sampler in an arena, and turns what comes out into pictures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "model/ranks.h"
#include "model/sampler.h"
#include "run/executor.h"
#include "run/run_memory.h"

namespace ebb {

enum class Drawn { all, stopped, not_finite };

class Drawer {
 public:
  // `plans` has those of sampler_programs(). All must outlive it; the memory holds the weights.
  // `peers`: of a sampler that weights are brought to.
  Drawer(const PlanSet& plans, const SamplerSpec& spec, const DitConfig& config,
         const Device& device, RunMemory& memory, PeerLane* peers = nullptr);

  // Draws `count` samples, a whole batch at a time (the last one filled up and cut).
  // take(first, count, values): (count, C, S, S) of the samples first .. first + count - 1; it is
  // called in order, and the values are gone when it returns. A sample is a function of the seed,
  // its place and its label: not a bit of it depends on which others are drawn with it.
  // stop() is asked before every call of the network; what is not finite is not given to take().
  using LabelOf = std::function<int32_t(int64_t place)>;
  using Take = std::function<void(int64_t first, int64_t count, const float* values)>;
  using Stop = std::function<bool()>;
  // watch(samples drawn, steps done of the next ones), after every step of the network.
  using Watch = std::function<void(int64_t drawn, int step)>;
  Drawn draw(
      int64_t count, const LabelOf& label_of, uint64_t seed, const Take& take,
      const Stop& stop = [] { return false; }, const Watch& watch = {});

  // The samples in these places alone, one batch of them at most. Their values are then in
  // values(), (count, C, S, S), until the next batch or until the arena is used otherwise; the host
  // may have others there meanwhile, as many as a batch has.
  Drawn draw_batch(Share places, const LabelOf& label_of, uint64_t seed, const Stop& stop,
                   const Watch& watch);
  float* values();

  const SamplerSpec& spec() const { return spec_; }
  int64_t sample_values() const { return config_.channels * config_.pixels(); }
  int64_t peak_bytes() const { return peak_bytes_; }  // of the arena, as drawn

 private:
  const SamplerSpec& spec_;
  const DitConfig& config_;
  RunMemory& memory_;
  Executor start_, step_;
  const std::vector<Scalars> schedule_;
  std::vector<int32_t> labels_;
  std::vector<float> copied_;  // the values, where the host does not reach the device's memory
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
