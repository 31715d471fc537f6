// Where samples go: a grid (.png), a set (.npz), raw values (.npy) or a folder of pictures.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"

namespace ebb {

struct OutputSpec {
  std::filesystem::path path;
  DitConfig config;
  bool pixels = true;                   // what the model draws are pictures
  std::vector<int32_t> classes;         // drawn one after the other
  int64_t each = 1;                     // samples of each class
  std::vector<std::string> names = {};  // of those classes, for a grid's rows; empty: not known

  int64_t count() const { return static_cast<int64_t>(classes.size()) * each; }
  int32_t label(int64_t place) const { return classes[place / each]; }
  // A model of latents has no decoder: its samples are written as .npy whatever was asked.
  std::filesystem::path real_path() const;
  // Memory that the output holds while samples come, beyond one picture.
  int64_t held_bytes() const;
};

// Gives the classes that are drawn their names, where `names` by label has one for each of them.
void name_classes(OutputSpec& spec, const std::vector<std::string>& names);

// Takes samples in order. Nothing appears under the path before finish(), but for a folder's
// pictures; a folder that was made for them goes again if there were none.
class SampleOutput {
 public:
  virtual ~SampleOutput() = default;
  virtual void take(int64_t first, int64_t count, const float* values) = 0;  // (count, C, S, S)
  virtual void finish() = 0;
};

// Fails with Exit::usage on a path of another kind, Exit::disk where it cannot be written.
std::unique_ptr<SampleOutput> make_output(const OutputSpec& spec);

}  // namespace ebb
