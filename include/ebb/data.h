// What a model is trained on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ebb {

// Samples that the program makes or reads by itself. Every method is called from any thread, also
// from several at once, and gives the same for the same sample as long as a run uses it.
class OwnSamples {
 public:
  virtual ~OwnSamples() = default;
  virtual int64_t count() const = 0;
  virtual int64_t channels() const = 0;
  virtual int64_t size() const = 0;               // of both sides
  virtual int64_t classes() const { return 0; }   // 0: no labels
  virtual bool pictures() const { return true; }  // values in [-1, 1]; otherwise latents, say

  // Writes (channels, size, size). What it throws comes out of Run::step() as an Error of the data.
  virtual void load(float* values, int64_t index) const = 0;
  virtual int32_t label(int64_t /*index*/) const { return 0; }

  // Bytes that are held all the time, and that one load() takes meanwhile: the plan counts them.
  virtual int64_t held_bytes() const { return 0; }
  virtual int64_t load_bytes() const { return 0; }
  // Tells these samples from others, for runs that go on from a checkpoint; "": nothing does.
  virtual std::string fingerprint() const { return ""; }
};

// A value that never changes; copies are cheap, share what they hold, and are safe from any thread.
class Data {
 public:
  // Arrays in memory, which are not copied: they must outlive this, its plans and its runs, and
  // stay as they are. The plan counts their bytes. Labels are 0 .. classes - 1, one for each
  // sample, or none at all. Fails with Exit::data where sizes or labels do not fit each other.
  //   pixels: (count, size, size, channels), 1 or 3 channels, as image libraries have them
  //   values: (count, channels, size, size), as the network sees them: latents, say
  static Data of_pixels(std::span<const uint8_t> pixels, std::span<const int32_t> labels,
                        int64_t size, int64_t channels = 1);
  static Data of_values(std::span<const float> values, std::span<const int32_t> labels,
                        int64_t size, int64_t channels);

  // The program's own. All labels are looked at once. Fails with Exit::data.
  static Data of(std::shared_ptr<const OwnSamples> samples);

  struct Options {
    int64_t image_size = 0;                   // pictures are brought to it; 0: as they are
    int64_t channels = 0;                     // 0: as the data has
    int64_t memory_limit = int64_t{2} << 30;  // that the opened data may hold
    bool verify = true;                       // small sets are decoded once, to find bad files
  };
  // A folder of pictures, IDX files, or features, as `ebb train --data`. Fails with Exit::data.
  static Data open(const std::filesystem::path& path, const Options& options);
  static Data open(const std::filesystem::path& path) { return open(path, Options()); }

  int64_t count() const;
  int64_t channels() const;
  int64_t size() const;
  int64_t classes() const;                              // 0: no labels
  const std::vector<std::string>& class_names() const;  // of folders; else none
  const std::vector<std::string>& notes() const;        // what a person should know of it

  // For Ebb's own use.
  struct Impl;
  explicit Data(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ebb
