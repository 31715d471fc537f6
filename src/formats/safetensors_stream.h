// Safetensors files that are larger than the memory at hand: read and written part by part, each
// byte once, with the hashes made on the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/atomic_file.h"
#include "formats/safetensors.h"

namespace ebb {

// XXH3_64 of bytes that come in parts, as files carry it: 16 hex digits.
class TensorHash {
 public:
  TensorHash();
  ~TensorHash();
  TensorHash(const TensorHash&) = delete;
  TensorHash& operator=(const TensorHash&) = delete;

  void add(const void* data, size_t bytes);
  std::string text() const;
  void restart();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One tensor from its beginning to its end. With its last byte the hash that the file carries of
// it, if any, is checked: another one is Exit::disk, so what was read before must not be kept.
// The file and the entry must outlive it.
class TensorStream {
 public:
  TensorStream(const SafetensorsReader& file, const TensorEntry& entry);

  int64_t left() const { return entry_.bytes() - done_; }
  void read(void* out, int64_t bytes);  // the next so many of those that are left

 private:
  void check() const;

  const SafetensorsReader& file_;
  const TensorEntry& entry_;
  TensorHash hash_;
  int64_t done_ = 0;
};

// Writes a file as write_safetensors does, of tensors whose bytes come one part after the other.
// Hashes stand before what they are of: room is left for them and they are put in at the end.
class SafetensorsWriter {
 public:
  // Of each tensor the name, the type and the shape; they must outlive it.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorData>& tensors,
                    std::map<std::string, std::string> metadata, bool hash_tensors);

  // The next bytes, of one tensor: no part reaches into the tensor after it.
  void write(const void* data, int64_t bytes);
  // All tensors are written: the file is there, or nothing is.
  void commit();

 private:
  void next_tensor();

  const std::vector<TensorData>& tensors_;
  std::map<std::string, std::string> metadata_;
  const bool hashes_;
  const std::string where_;
  AtomicFile file_;
  uint64_t header_bytes_ = 0;
  size_t at_ = 0;     // the tensor that is being written,
  int64_t left_ = 0;  // and its bytes that are still to come
  TensorHash hash_;
};

}  // namespace ebb
