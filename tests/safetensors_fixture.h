// A temporary file and the one question the safetensors tests ask of it: does it open and read?
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "formats/safetensors.h"
#include "temp_folder.h"

namespace ebb {

class SafetensorsTest : public testing::Test {
 protected:
  void put(const std::string& bytes) const {
    std::filesystem::remove(
        file_);  // ext4 syncs a file that is truncated and rewritten: 2 ms each time
    std::ofstream(file_, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }
  std::string get() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string with_header(const std::string& header, size_t data_bytes) {
    const uint64_t size = header.size();
    std::string bytes(sizeof(size), '\0');
    std::memcpy(bytes.data(), &size, sizeof(size));
    return bytes + header + std::string(data_bytes, 'd');
  }

  // Opens the file and reads all of it: true, or false when it was refused as it should be.
  bool opens(Exit code = Exit::disk) const {
    try {
      const SafetensorsReader reader(file_, code);
      uint64_t total = 0;
      for (const TensorEntry& entry : reader.tensors()) {
        EXPECT_EQ(entry.count() * item_size(entry.type), entry.bytes());
        EXPECT_EQ(reader.find(entry.name), &entry);
        std::string data(static_cast<size_t>(entry.bytes()), '\0');
        reader.read(entry, data.data(), entry.bytes());
        total += data.size();
      }
      EXPECT_LE(total, std::filesystem::file_size(file_));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(std::string(error.what()).rfind(file_.string() + ": ", 0), 0u) << error.what();
      EXPECT_FALSE(error.hint().empty());
      message_ = error.what();
      return false;
    }
    return true;
  }

  TempFolder temp_;
  std::filesystem::path folder_ = temp_.path(), file_ = folder_ / "f.safetensors";
  mutable std::string message_;
};

}  // namespace ebb
