// Training data as the trainer sees it, whatever lies on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "program/dtype.h"

namespace ebb {

struct DataInfo {
  std::string kind;  // "idx", "images" or "features"
  int64_t count = 0;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t classes = 0;                   // 0: no labels; every label is then 0
  std::vector<std::string> class_names;  // of folders: valid UTF-8, no control codes; else empty
  std::vector<int64_t> class_counts;     // samples of each class
  std::string fingerprint;               // 16 hex digits: which samples these are, in which order
  bool pixels = false;                   // what the network sees is v / 127.5 - 1 of them
  DType type = DType::f32;               // of a sample's values: u8 of pixels, f16 or f32
  int64_t skipped = 0;                   // files left out because they cannot be decoded
  std::vector<std::string> notes;        // what the user should be told, a line each
};

// A set of samples. Immutable once opened: every method is safe from any thread.
class Source {
 public:
  virtual ~Source() = default;
  const DataInfo& info() const { return info_; }
  int64_t sample_values() const { return info_.channels * info_.height * info_.width; }
  int64_t sample_bytes() const { return sample_values() * dtype_bytes(info_.type); }

  // Writes sample `index`, (C,H,W) of info().type, and its label. `values` has sample_bytes()
  // bytes; `scratch` has scratch_bytes(), aligned to 16, and is the calling thread's own. Fails
  // with Exit::data naming the file.
  virtual void load(std::byte* values, int32_t* label, int64_t index,
                    std::span<std::byte> scratch) const = 0;
  virtual int64_t scratch_bytes() const = 0;
  virtual int32_t label(int64_t index) const = 0;
  // What messages call a sample: its file, where it has one.
  virtual std::string name(int64_t index) const { return "sample " + std::to_string(index); }

  // How many samples may turn out to be bad only when they are loaded. Others then stand in for
  // them; beyond this number the data as a whole is taken for damaged.
  virtual int64_t most_bad() const { return 0; }

  // Most that one load() takes from the heap and gives back (inside the libraries that decode).
  virtual int64_t heap_bytes() const = 0;

  // What the opened source holds: decompressed pixels, names, labels.
  virtual int64_t held_bytes() const = 0;

 protected:
  // Fills in class_counts.
  void count_class(int64_t label) {
    info_.class_counts.resize(static_cast<size_t>(info_.classes));
    if (info_.classes > 0) ++info_.class_counts[static_cast<size_t>(label)];
  }

  DataInfo info_;
};

struct SourceOptions {
  int64_t image_size = 0;  // 0: from the data where it says
  int channels = 0;        // 0: from the data; 1 or 3 for images
  // What the source may hold, and what decoding one image may take. Data asking for more is refused
  // (a single image: skipped like an undecodable one).
  int64_t memory_limit = int64_t{2} << 30;
  // Decodes everything once on opening, if it is little enough for that; false: headers only.
  bool verify = true;
};

// Recognises the data by looking:
//   IDX       a folder with *-images-idx3-ubyte[.gz] (train- preferred), or that file itself
//   features  a folder with *_features/{i}.npy and *_labels/{i}.npy, or *_features itself
//   images    a folder of PNG, JPEG, WebP, GIF and BMP files, or one such folder for each class
// Fails with Exit::data.
std::unique_ptr<Source> open_source(const std::filesystem::path& path,
                                    const SourceOptions& options = {});

}  // namespace ebb
