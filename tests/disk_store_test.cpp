// The file behind the memory: order, parts of blocks, and what goes wrong.
#include "run/disk_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/device.h"
#include "temp_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

class DiskStoreTest : public ::testing::Test {
 protected:
  TempFolder folder_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(5 * 4096 + 17);
};

TEST_F(DiskStoreTest, IsZeroAndLeavesNothingBehind) {
  DiskStore disk(folder_.path(), 100'000, memory_);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  std::vector<std::byte> all(100'000, std::byte{1});
  disk.read(all.data(), 0, 100'000);
  EXPECT_EQ(all, std::vector<std::byte>(100'000));
}

TEST_F(DiskStoreTest, AnyPartCanBeWrittenAndRead) {
  constexpr int64_t kBytes = 200'001;
  DiskStore disk(folder_.path(), kBytes, memory_);
  std::vector<std::byte> expected(kBytes);
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    const auto offset = static_cast<int64_t>(random() % kBytes);
    const auto bytes = static_cast<int64_t>(random() % (kBytes - offset + 1));
    std::vector<std::byte> part(bytes);
    for (std::byte& b : part) b = static_cast<std::byte>(random());
    std::copy(part.begin(), part.end(), expected.begin() + offset);
    disk.write(part.data(), offset, bytes);
  }
  std::vector<std::byte> found(kBytes);
  disk.read(found.data(), 0, kBytes);
  EXPECT_TRUE(found == expected);
  disk.read(found.data(), 70'003, 5);
  EXPECT_TRUE(std::equal(found.begin(), found.begin() + 5, expected.begin() + 70'003));
}

TEST_F(DiskStoreTest, TransfersHappenInTheOrderOfAsking) {
  DiskStore disk(folder_.path(), 4096, memory_);
  // A value goes out from its place and comes back behind the others.
  const auto memory = cpu_device().take(100 * 1000);
  DiskStore::Ticket last = 0;
  for (int i = 0; i < 50; ++i) {
    const std::vector<std::byte> value(1000, static_cast<std::byte>(i));
    memory->write({0, i * 1000}, value.data(), 1000);
    disk.store(*memory, {0, i * 1000}, 8, 1000);
    last = disk.fetch(*memory, {0, (50 + i) * 1000}, 8, 1000);
  }
  disk.wait(last);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> found(1000);
    memory->read(found.data(), {0, (50 + i) * 1000}, 1000);
    EXPECT_EQ(found, std::vector<std::byte>(1000, static_cast<std::byte>(i)));
  }
}

TEST_F(DiskStoreTest, APlaceThatCannotBeUsedIsRefused) {
  const auto message = [&](const fs::path& where, int64_t bytes) {
    try {
      const DiskStore disk(where, bytes, memory_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::disk);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(message(folder_.path() / "absent", 10).find("no file can be made"), std::string::npos);
  EXPECT_NE(message("/proc", 10).find("no file can be made"), std::string::npos);
  EXPECT_NE(message(folder_.path(), int64_t{1} << 59).find("no room for"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

// As on a file system that cannot promise room: the file grows past what is allowed.
TEST_F(DiskStoreTest, AFailureIsToldToWhoeverWaits) {
  DiskStore disk(folder_.path(), 4096, memory_);
  const auto memory = cpu_device().take(4096);
  const DiskStore::Ticket beyond = disk.fetch(*memory, {}, 1 << 20, 4096);
  const DiskStore::Ticket after = disk.store(*memory, {}, 0, 4096);
  for (const DiskStore::Ticket ticket : {beyond, after}) {
    try {
      disk.wait(ticket);
      FAIL() << "nothing was told";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::disk);
      EXPECT_NE(std::string(error.what()).find(folder_.path().string()), std::string::npos);
      EXPECT_NE(error.hint().find("--resume"), std::string::npos);
    }
  }
}

TEST_F(DiskStoreTest, ItsSpeedCanBeMeasured) {
  const DiskSpeed speed = measure_disk(folder_.path());
  EXPECT_GT(speed.read, 1e5);
  EXPECT_GT(speed.write, 1e5);
  EXPECT_EQ(disk_identity(folder_.path()), disk_identity(folder_.path()));
  EXPECT_FALSE(is_in_memory("/proc"));
}

}  // namespace
}  // namespace ebb
