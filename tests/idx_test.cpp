#include "formats/idx.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

class IdxFiles : public ::testing::Test {
 protected:
  IdxFiles() { fs::create_directories(folder_); }
  ~IdxFiles() override { fs::remove_all(folder_); }

  // New files each time: ext4 writes one that is truncated to the disk at once, which is slow.
  fs::path plain(const Bytes& bytes) const {
    fs::remove(folder_ / "plain");
    std::ofstream(folder_ / "plain", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    return folder_ / "plain";
  }
  fs::path packed(const Bytes& bytes) const {
    fs::remove(folder_ / "packed.gz");
    gzFile file = gzopen((folder_ / "packed.gz").c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return folder_ / "packed.gz";
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("ebb_idx_test_" + std::to_string(::getpid()));
};

// 3 images of 4 x 5 with the values 0 .. 59.
Bytes three_images() {
  Bytes bytes = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5};
  for (int i = 0; i < 60; ++i) bytes.push_back(static_cast<uint8_t>(i));
  return bytes;
}

Bytes slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Bytes read_all(const fs::path& path, int rank = 3) {
  IdxFile file(path, rank);
  Bytes values(static_cast<size_t>(file.count()));
  file.read(values.data());
  return values;
}

TEST_F(IdxFiles, PlainAndCompressedGiveTheSame) {
  Bytes wanted(60);
  std::iota(wanted.begin(), wanted.end(), uint8_t{0});
  for (const fs::path& path : {plain(three_images()), packed(three_images())}) {
    const IdxFile file(path, 3);
    EXPECT_EQ(file.dim(0), 3);
    EXPECT_EQ(file.dim(1), 4);
    EXPECT_EQ(file.dim(2), 5);
    EXPECT_EQ(read_all(path), wanted);
  }
  EXPECT_EQ(read_all(plain({0, 0, 8, 1, 0, 0, 0, 2, 7, 9}), 1), (Bytes{7, 9}));
}

TEST_F(IdxFiles, EveryTruncationIsRefused) {
  const Bytes whole = three_images();
  for (size_t length = 0; length < whole.size(); ++length) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_THROW(read_all(plain(cut)), Error) << length;
    EXPECT_THROW(read_all(packed(cut)), Error) << length;
  }
  const Bytes gz = slurp(packed(whole));
  for (size_t length = 0; length < gz.size(); ++length) {
    const Bytes cut(gz.begin(), gz.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_THROW(read_all(plain(cut)), Error) << length;
  }
}

TEST_F(IdxFiles, BytesTooManyAreRefused) {
  Bytes bytes = three_images();
  bytes.push_back(0);
  EXPECT_THROW(read_all(plain(bytes)), Error);
  EXPECT_THROW(read_all(packed(bytes)), Error);
}

TEST_F(IdxFiles, AHeaderCannotAskForMemory) {
  Bytes bytes = three_images();
  for (size_t i = 4; i < 16; ++i) bytes[i] = 0xff;
  EXPECT_THROW(IdxFile(plain(bytes), 3), Error);
  EXPECT_THROW(IdxFile(packed(bytes), 3), Error);
  const Bytes large = {0, 0, 8, 3, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0};  // 4 GiB, says a short file
  EXPECT_THROW(IdxFile(plain(large), 3), Error);
  EXPECT_THROW(IdxFile(packed(large), 3), Error);
}

TEST_F(IdxFiles, OtherTypesAndRanksAreRefusedByName) {
  Bytes bytes = three_images();
  bytes[2] = 0x0d;  // floats
  try {
    read_all(plain(bytes));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::data);
    EXPECT_NE(std::string(error.what()).find("00000d03"), std::string::npos) << error.what();
  }
  EXPECT_THROW(read_all(plain(three_images()), 1), Error);
  EXPECT_THROW(read_all(folder_ / "missing"), Error);
}

TEST_F(IdxFiles, MutationsNeverCrash) {
  std::mt19937 random(7);
  const Bytes gz = slurp(packed(three_images()));
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes = round % 2 ? gz : three_images();
    bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1 + random() % 255);
    try {
      EXPECT_EQ(read_all(plain(bytes)).size(), 60u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::data);
    }
  }
}

}  // namespace
}  // namespace ebb
