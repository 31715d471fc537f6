// The first measurement of a kind of process is kept: a few pages never decide between two plans.
#include "machine/outside.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "temp_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = 1 << 20;

class FirstMeasured : public ::testing::Test {
 protected:
  TempFolder folder_;
  fs::path file_ = folder_.path() / "ebb" / "outside.json";
};

TEST_F(FirstMeasured, WhatDiffersByNoiseIsTheFirst) {
  EXPECT_EQ(first_measured(file_, "a", 100 * kMiB), 100 * kMiB);
  EXPECT_EQ(first_measured(file_, "a", 100 * kMiB + 4096), 100 * kMiB);
  EXPECT_EQ(first_measured(file_, "a", 100 * kMiB - measuring_noise()), 100 * kMiB);
  EXPECT_EQ(first_measured(file_, "a", 100 * kMiB + measuring_noise()), 100 * kMiB);
}

TEST_F(FirstMeasured, WhatDiffersByMoreIsAnotherAndBothAreKept) {
  const int64_t low = 100 * kMiB, high = low + measuring_noise() + kMiB;
  EXPECT_EQ(first_measured(file_, "a", low), low);
  EXPECT_EQ(first_measured(file_, "a", high), high);
  EXPECT_EQ(first_measured(file_, "a", low + 1), low);
  EXPECT_EQ(first_measured(file_, "a", high - 1), high);  // the nearer of two
}

TEST_F(FirstMeasured, AnotherKindIsMeasuredForItself) {
  EXPECT_EQ(first_measured(file_, "a", 100 * kMiB), 100 * kMiB);
  EXPECT_EQ(first_measured(file_, "b", 100 * kMiB + 4096), 100 * kMiB + 4096);
}

TEST_F(FirstMeasured, ADamagedFileIsMadeAnew) {
  fs::create_directories(file_.parent_path());
  const int64_t bytes = 100 * kMiB;
  for (const char* text :
       {"", "{", "[]", "{\"processes\":[[\"a\"]]}", "{\"processes\":[[\"a\",1,2]]}",
        "{\"processes\":[[\"a\",\"x\"]]}", "{\"other\":[]}"}) {
    SCOPED_TRACE(text);
    std::ofstream(file_) << text;
    EXPECT_EQ(first_measured(file_, "a", bytes), bytes);
    EXPECT_EQ(first_measured(file_, "a", bytes + 1), bytes);
  }
}

TEST_F(FirstMeasured, ProcessesThatMeasureAtOnceKeepEachOthersMeasurements) {
  constexpr int kThreads = 8, kKinds = 20;
  const auto kind = [](int thread, int i) {
    return std::to_string(thread) + " " + std::to_string(i);
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kKinds; ++i) first_measured(file_, kind(thread, i), 100 * kMiB);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int i = 0; i < kKinds; ++i) {
      EXPECT_EQ(first_measured(file_, kind(thread, i), 101 * kMiB), 100 * kMiB) << kind(thread, i);
    }
  }
}

TEST_F(FirstMeasured, NoFileIsNoMemory) {
  EXPECT_EQ(first_measured({}, "a", 5), 5);
  EXPECT_EQ(first_measured({}, "a", 6), 6);
  EXPECT_EQ(first_measured("/dev/null/x.json", "a", 7), 7);
}

TEST_F(FirstMeasured, TheOldestAreForgotten) {
  for (int i = 0; i < 301; ++i) first_measured(file_, std::to_string(i), 100 * kMiB);
  EXPECT_EQ(first_measured(file_, "0", 101 * kMiB), 101 * kMiB);
  EXPECT_EQ(first_measured(file_, "300", 101 * kMiB), 100 * kMiB);
}

}  // namespace
}  // namespace ebb
