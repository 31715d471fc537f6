// A folder of training data, for the tests of data/source.h.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float16.h"
#include "data/source.h"

namespace ebb::data_fixture {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

class DataFolder : public ::testing::Test {
 protected:
  DataFolder() { fs::create_directories(folder_); }
  ~DataFolder() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("ebb_data_test_" + std::to_string(::getpid()));
};

struct Sample {
  std::vector<float> x;
  int32_t label = -1;
};

// As the network sees it.
inline Sample load(const Source& source, int64_t index) {
  Sample sample;
  std::vector<std::byte> values(static_cast<size_t>(source.sample_bytes()));
  std::vector<std::byte> scratch(static_cast<size_t>(source.scratch_bytes()));
  source.load(values.data(), &sample.label, index, scratch);
  for (int64_t i = 0; i < source.sample_values(); ++i) {
    switch (source.info().type) {
      case DType::u8:
        sample.x.push_back(static_cast<float>(values[static_cast<size_t>(i)]) / 127.5f - 1);
        break;
      case DType::f16:
        sample.x.push_back(static_cast<float>(reinterpret_cast<const F16*>(values.data())[i]));
        break;
      default:
        sample.x.push_back(reinterpret_cast<const float*>(values.data())[i]);
    }
  }
  return sample;
}

// The message of the data error that opening must end with.
inline std::string refusal(const fs::path& path, const SourceOptions& options = {}) {
  try {
    open_source(path, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::data) << error.what();
    return fmt::format("{}\n{}", error.what(), error.hint());
  }
  ADD_FAILURE() << path << " was accepted";
  return "";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

}  // namespace ebb::data_fixture
