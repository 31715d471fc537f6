// The cache of the cost model: what is kept, what is refused, what is measured again.
#include "machine/calibration.h"

#include "kernels/cpu/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/threads.h"
#include "kernels/cpu/device.h"
#include "temp_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

class CalibrationCache : public ::testing::Test {
 protected:
  // Measurements that never repeat, so that a second one would show.
  Calibration get(const std::string& machine) {
    said_.clear();
    const auto points = [&] {
      std::vector<CostPoint> made;
      for (const OpParams& shape : calibration_shapes()) {
        const double seconds = 1e-3 / (3 + measured_ + static_cast<double>(made.size()));
        made.push_back(cost_point(shape, seconds));
      }
      return made;
    };
    Calibration found = machine_calibration(
        file_, {machine, "first use on this machine with these threads", 5, points(),
                [&] {
                  ++measured_;
                  return Measurement{points(), busy_};
                },
                [&](const std::string& line) { said_ += line + "\n"; }});
    return found;
  }

  std::string text() const {
    std::stringstream all;
    all << std::ifstream(file_).rdbuf();
    return all.str();
  }
  void put(const std::string& content) const { std::ofstream(file_) << content; }

  // The file as written, with the first `what` replaced.
  void spoil(const std::string& what, const std::string& with) const {
    std::string content = text();
    const size_t at = content.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    put(content.replace(at, what.size(), with));
  }

  void expect_damaged() {
    const int before = measured_;
    get("here");
    EXPECT_EQ(measured_, before + 1);
    EXPECT_EQ(said_,
              "calibration: " + file_.string() + " is damaged: measuring again, about 5 s\n");
    get("here");
    EXPECT_EQ(measured_, before + 1) << "made anew";
    EXPECT_EQ(said_, "");
  }

  TempFolder folder_;
  fs::path file_ = folder_.path() / "ebb" / "calibration.json";
  std::string said_;
  int measured_ = 0;
  bool busy_ = false;
};

TEST_F(CalibrationCache, IsWrittenAndReadBackEqual) {
  const Calibration first = get("here");
  EXPECT_EQ(said_,
            "calibration: first use on this machine with these threads: measuring, about 5 s\n");
  EXPECT_EQ(get("here"), first);
  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(said_, "");
}

TEST_F(CalibrationCache, KeepsMachinesAndThreadCountsApart) {
  const Calibration one = get("here, 1 threads");
  const Calibration two = get("here, 2 threads");
  EXPECT_EQ(get("here, 1 threads"), one);
  EXPECT_EQ(get("here, 2 threads"), two);
  EXPECT_EQ(measured_, 2);
  for (int i = 0; i < 40; ++i) get("machine " + std::to_string(i));
  EXPECT_LT(fs::file_size(file_), size_t{1} << 20);
  EXPECT_EQ(get("machine 39").machine, "machine 39");
  EXPECT_EQ(measured_, 42);
}

TEST_F(CalibrationCache, DamagedIsMadeAnew) {
  get("here");
  const std::string whole = text();
  for (const size_t bytes : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 3}) {
    put(whole.substr(0, bytes));
    expect_damaged();
  }
  put(whole + "x");
  expect_damaged();
  put(std::string(2 << 20, ' '));
  expect_damaged();
  put(std::string(100000, '['));
  expect_damaged();
  put("{\"machines\":[]}");
  expect_damaged();
  fs::remove(file_);
  fs::create_directory(file_);  // cannot be read, nor replaced
  get("here");
  EXPECT_NE(said_.find("is damaged"), std::string::npos);
  EXPECT_NE(said_.find("warning: calibration: not kept"), std::string::npos);
}

TEST_F(CalibrationCache, HostileNumbersAreDamage) {
  get("here");
  const std::string whole = text();
  const size_t from = whole.find("[\"");
  const std::string point = whole.substr(from, whole.find(']', from) - from + 1);
  for (const char* hostile :
       {"[\"linear\",1,6144,1e400]", "[\"linear\",1,6144,-1]", "[\"linear\",1,6144,0]",
        "[\"linear\",1,6144,NaN]", "[\"linear\",1,6144,1e300]", "[\"linear\",0,6144,1e-5]",
        "[\"linear\",1,1e99,1e-5]", "[\"linear\",1,6144]", "[\"linear\",1,6144,1e-5,1]", "[]",
        "[7,1,6144,1e-5]", "null"}) {
    put(whole);
    spoil(point, hostile);
    expect_damaged();
  }
  put(whole);
  spoil("\"version\":", "\"version\":9999999999999999999");
  expect_damaged();
}

TEST_F(CalibrationCache, OfABusyMachineIsKeptForMinutesOnly) {
  busy_ = true;
  get("here");
  EXPECT_NE(said_.find("warning: calibration: other programs were running"), std::string::npos);
  get("here");
  EXPECT_EQ(measured_, 1);
  const std::string content = text();
  const size_t from = content.find("\"expires\":");
  spoil(content.substr(from, content.find(',', from) - from), "\"expires\":1000000000");
  busy_ = false;
  get("here");
  EXPECT_EQ(measured_, 2);
  EXPECT_NE(said_.find("measuring again"), std::string::npos);
  EXPECT_NE(text().find("\"expires\":0"), std::string::npos);
}

TEST_F(CalibrationCache, OtherShapesAreMeasuredAgain) {
  get("here");
  spoil("\"gelu\"", "\"melu\"");
  get("here");
  EXPECT_EQ(measured_, 2);
  EXPECT_NE(said_.find("is of another version"), std::string::npos);
}

TEST_F(CalibrationCache, LearnsThePaceOfStepsAndForgetsOldOnes) {
  learn_pace(file_, "here", 2);  // there is nothing yet that it could be the pace of
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_EQ(get("here").paces, std::vector<double>{});
  get("there");
  for (const double pace : {1.5, 0.0, -1.0, 1e9, std::nan(""), 1.25}) {
    learn_pace(file_, "here", pace);
  }
  EXPECT_EQ(get("here").paces, (std::vector<double>{1.5, 1.25}));
  EXPECT_EQ(get("there").paces, std::vector<double>{});
  EXPECT_EQ(CostModel(get("here")).pace(), 1.5);
  for (int i = 1; i <= 20; ++i) learn_pace(file_, "here", i);
  EXPECT_EQ(get("here").paces, (std::vector<double>{12, 13, 14, 15, 16, 17, 18, 19, 20}));
  EXPECT_EQ(measured_, 2);
  spoil("\"paces\":[12,", "\"paces\":[-12,");
  learn_pace(file_, "here", 1);  // damaged: left to the next calibration
  expect_damaged();
  EXPECT_EQ(get("here").paces, std::vector<double>{}) << "they were of another calibration";
}

TEST_F(CalibrationCache, WhatAnotherProcessMeasuredMeanwhileStays) {
  get("here");
  Calibration there;
  machine_calibration(file_, {"elsewhere",
                              "first use",
                              5,
                              there.points,
                              [&] {
                                there = get("there");
                                learn_pace(file_, "here", 1.5);
                                return Measurement{there.points, false};
                              },
                              {}});
  const int before = measured_;
  EXPECT_EQ(get("there"), there);
  EXPECT_EQ(get("elsewhere").points, there.points);
  EXPECT_EQ(get("here").paces, std::vector<double>{1.5});
  EXPECT_EQ(measured_, before);
}

TEST_F(CalibrationCache, APlaceThatCannotBeWrittenIsAWarning) {
  file_ = "/proc/ebb/calibration.json";
  EXPECT_EQ(get("here").points.size(), calibration_shapes().size());
  EXPECT_NE(said_.find("warning: calibration: not kept"), std::string::npos);
  file_ = "";
  EXPECT_EQ(get("here").points.size(), calibration_shapes().size());
  EXPECT_EQ(said_.find("warning"), std::string::npos);
}

TEST_F(CalibrationCache, IsWhereTheEnvironmentSays) {
  const auto restore = [](const char* name) {
    const char* value = std::getenv(name);
    return [name, kept = value ? std::string(value) : std::string(), was = value != nullptr] {
      was ? setenv(name, kept.c_str(), 1) : unsetenv(name);
    };
  };
  const auto file = restore("EBB_CALIBRATION");
  const auto cache = restore("XDG_CACHE_HOME");
  const auto home = restore("HOME");
  setenv("HOME", "/h", 1);
  setenv("XDG_CACHE_HOME", "/c", 1);
  setenv("EBB_CALIBRATION", "/f.json", 1);
  EXPECT_EQ(calibration_file(), "/f.json");
  unsetenv("EBB_CALIBRATION");
  EXPECT_EQ(calibration_file(), "/c/ebb/calibration.json");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(calibration_file(), "/h/.cache/ebb/calibration.json");
  unsetenv("HOME");
  EXPECT_EQ(calibration_file(), "");
  file();
  cache();
  home();
}

TEST(Calibration, TimesEveryShapeOfThisMachine) {
  const std::vector<OpTiming> timings = calibrate_cpu({1, 1, 0});
  EXPECT_EQ(timings.size(), calibration_shapes().size());
  for (const OpTiming& timing : timings) {
    EXPECT_TRUE(std::isfinite(timing.seconds) && timing.seconds > 0);
  }
}

TEST(Calibration, IdentityTellsThreadsApart) { EXPECT_NE(cpu_identity(2), cpu_identity(1)); }

}  // namespace
}  // namespace ebb
