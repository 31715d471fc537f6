#include "formats/npy.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zip.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "formats/npz.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

class NpyFiles : public ::testing::Test {
 protected:
  NpyFiles() { fs::create_directories(folder_); }
  ~NpyFiles() override { fs::remove_all(folder_); }

  // A new file each time: ext4 writes one that is truncated to the disk at once, which is slow.
  fs::path file(const std::string& bytes) const {
    fs::remove(folder_ / "a.npy");
    std::ofstream(folder_ / "a.npy", std::ios::binary) << bytes;
    return folder_ / "a.npy";
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("ebb_npy_test_" + std::to_string(::getpid()));
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::string npy(const char* descr, std::vector<int64_t> shape, const std::vector<T>& values) {
  return make_npy_header(descr, shape) + bytes_of(values);
}

std::vector<float> floats(const fs::path& path) {
  NpyFile file(path);
  std::vector<float> values(static_cast<size_t>(file.header().count));
  file.read(values.data());
  return values;
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(NpyFiles, WhatIsWrittenIsReadBack) {
  std::vector<float> values(2 * 3 * 4);
  std::iota(values.begin(), values.end(), -5.5f);
  const int64_t shape[] = {2, 3, 4};
  write_npy(folder_ / "w.npy", values.data(), shape);
  const NpyFile read(folder_ / "w.npy");
  EXPECT_EQ(format_shape(read.header().shape()), "(2, 3, 4)");
  EXPECT_EQ(floats(folder_ / "w.npy"), values);
  EXPECT_EQ(slurp(folder_ / "w.npy").size() % 64, (2 * 3 * 4 * 4) % 64);  // as numpy aligns it
}

TEST_F(NpyFiles, EveryTypeBecomesFloats) {
  const std::vector<float> wanted = {0, 1, 2, 200};
  EXPECT_EQ(floats(file(npy<float>("<f4", {4}, {0, 1, 2, 200}))), wanted);
  EXPECT_EQ(floats(file(npy<double>("<f8", {4}, {0, 1, 2, 200}))), wanted);
  EXPECT_EQ(floats(file(npy<int64_t>("<i8", {4}, {0, 1, 2, 200}))), wanted);
  EXPECT_EQ(floats(file(npy<int32_t>("<i4", {4}, {0, 1, 2, 200}))), wanted);
  EXPECT_EQ(floats(file(npy<uint8_t>("|u1", {4}, {0, 1, 2, 200}))), wanted);
  const auto halves =
      floats(file(npy<uint16_t>("<f2", {6}, {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x7e00})));
  EXPECT_EQ(halves[0], 1);
  EXPECT_EQ(halves[1], -2);
  EXPECT_EQ(halves[2], 0x1p-24f);
  EXPECT_EQ(halves[3], 65504);
  EXPECT_TRUE(std::isinf(halves[4]));
  EXPECT_TRUE(std::isnan(halves[5]));
}

TEST_F(NpyFiles, WholeNumbersComeFromWholeNumbersOnly) {
  int64_t value = 0;
  NpyFile(file(npy<int64_t>("<i8", {1}, {int64_t{1} << 40}))).read(&value);
  EXPECT_EQ(value, int64_t{1} << 40);
  NpyFile(file(npy<int32_t>("<i4", {}, {-3}))).read(&value);
  EXPECT_EQ(value, -3);
  NpyFile floating(file(npy<float>("<f4", {1}, {1})));
  EXPECT_THROW(floating.read(&value), Error);
}

TEST_F(NpyFiles, VersionsTwoAndThreeAreRead) {
  for (const char version : {'\2', '\3'}) {
    const std::string dict = "{\"descr\": \"<f4\", 'fortran_order': False, 'shape': (2L,), }\n";
    std::string bytes("\x93NUMPY", 6);
    bytes += version;
    bytes +=
        std::string("\0", 1) + static_cast<char>(dict.size()) + std::string("\0\0\0", 3) + dict;
    EXPECT_EQ(floats(file(bytes + bytes_of<float>({3, 4}))), (std::vector<float>{3, 4}));
  }
}

TEST_F(NpyFiles, HostileHeadersAreRefused) {
  for (const char* text : {
           "",
           "{",
           "}",
           "{}",
           "[]",
           "{'descr'",
           "{'descr':",
           "{'descr': '<f4'}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
           "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
           "{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}",
           "{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
           "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
           "{'descr': __import__('os').system('id'), 'fortran_order': False, 'shape': (1,)}",
       }) {
    EXPECT_THROW(parse_npy_header(text, "x.npy"), Error) << text;
  }
  try {
    parse_npy_header("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", "x.npy");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("ascontiguousarray"), std::string::npos);
  }
}

TEST_F(NpyFiles, FilesOfAnotherLengthAreRefused) {
  const std::string whole = npy<float>("<f4", {2, 2}, {1, 2, 3, 4});
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(floats(file(whole.substr(0, length))), Error) << length;
  }
  EXPECT_THROW(floats(file(whole + "x")), Error);
  EXPECT_THROW(floats(folder_ / "missing.npy"), Error);
}

TEST_F(NpyFiles, MutationsNeverCrash) {
  const std::string whole = npy<float>("<f4", {2, 2}, {1, 2, 3, 4});
  const std::string alphabet = "{}()[],:'\" 0123456789-L<>fiuTrueFalse\n\x01\xff";
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    for (unsigned i = 0; i <= random() % 4; ++i) {
      bytes[random() % 90] = alphabet[random() % alphabet.size()];
    }
    try {
      EXPECT_LE(floats(file(bytes)).size(), 64u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::data);
    }
  }
}

TEST_F(NpyFiles, NpzHasTheTwoMembersThatEvaluationSuitesRead) {
  std::vector<uint8_t> images(3 * 4 * 5 * 3);
  std::iota(images.begin(), images.end(), uint8_t{0});
  const std::vector<int64_t> labels = {7, 0, -1};
  const fs::path path = folder_ / "samples.npz";
  write_npz_samples(path, images.data(), labels.data(), 3, 4, 5, 3);

  int code = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code);
  ASSERT_NE(archive, nullptr) << code;
  ASSERT_EQ(zip_get_num_entries(archive, 0), 2);
  const std::string wanted[] = {
      make_npy_header("|u1", std::vector<int64_t>{3, 4, 5, 3}) + bytes_of(images),
      make_npy_header("<i8", std::vector<int64_t>{3}) + bytes_of(labels)};
  const char* names[] = {"arr_0.npy", "arr_1.npy"};
  for (int i = 0; i < 2; ++i) {
    zip_file_t* member = zip_fopen(archive, names[i], 0);
    ASSERT_NE(member, nullptr);
    std::string found(wanted[i].size() + 1, '\0');
    const auto got = zip_fread(member, found.data(), found.size());  // compares the checksum too
    ASSERT_EQ(got, std::ssize(wanted[i]));
    found.resize(static_cast<size_t>(got));
    EXPECT_TRUE(found == wanted[i]) << names[i];
    EXPECT_EQ(zip_fclose(member), 0);
  }
  zip_discard(archive);

  NpzSamplesWriter writer(folder_ / "streamed.npz", 3, 4, 5, 3);
  for (int i = 0; i < 3; ++i) writer.add(images.data() + i * 60, 1);
  EXPECT_FALSE(fs::exists(folder_ / "streamed.npz"));
  writer.finish(labels.data());
  EXPECT_TRUE(slurp(folder_ / "streamed.npz") == slurp(path));
}

}  // namespace
}  // namespace ebb
