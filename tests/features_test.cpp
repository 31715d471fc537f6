// Features as fast-DiT extracts them, good and bad.
#include <limits>

#include "data_fixture.h"
#include "formats/npy.h"

namespace ebb {
namespace {

using namespace data_fixture;

class FeatureData : public DataFolder {
 protected:
  void features(int count, int classes) const {
    const int64_t shape[] = {1, 2, 3, 4};
    fs::create_directories(folder_ / "toy_features");
    for (int i = 0; i < count; ++i) {
      const std::vector<float> x(24, static_cast<float>(i));
      write_npy(feature(i), x.data(), shape);
      label(i, i % classes);
    }
  }
  fs::path feature(int i) const { return folder_ / "toy_features" / fmt::format("{}.npy", i); }
  void label(int i, int64_t value) const {
    write(fmt::format("toy_labels/{}.npy", i),
          make_npy_header("<i8", std::vector<int64_t>{1}) +
              std::string(reinterpret_cast<const char*>(&value), 8));
  }
};

TEST_F(FeatureData, FeaturesOfFastDitAreRead) {
  features(12, 3);
  for (const fs::path& path : {folder_, folder_ / "toy_features", folder_ / "toy_features" / ""}) {
    const auto source = open_source(path);
    EXPECT_EQ(source->info().kind, "features");
    EXPECT_EQ(source->info().count, 12);
    EXPECT_EQ(source->info().channels, 2);
    EXPECT_EQ(source->info().height, 3);
    EXPECT_EQ(source->info().width, 4);
    EXPECT_EQ(source->info().classes, 3);
    EXPECT_FALSE(source->info().pixels);
    const Sample sample = load(*source, 10);
    EXPECT_EQ(sample.label, 1);
    EXPECT_EQ(sample.x, std::vector<float>(24, 10.0f));
  }
}

TEST_F(FeatureData, BadFeaturesAreRefusedByName) {
  features(4, 3);
  fs::remove(folder_ / "toy_labels/2.npy");
  expect_contains(refusal(folder_), "toy_labels/2.npy");
  label(2, -5);
  expect_contains(refusal(folder_), "found label -5");
  label(2, 1'000'001);
  expect_contains(refusal(folder_), "found label 1000001");
  label(2, 0);
  EXPECT_NO_THROW(open_source(folder_));
  expect_contains(refusal(folder_, {.image_size = 16}), "--image-size");
  expect_contains(refusal(folder_, {.channels = 3}), "--channels");

  std::vector<float> x(24);
  x[13] = std::numeric_limits<float>::quiet_NaN();
  const int64_t shape[] = {2, 3, 4}, other[] = {2, 4, 3};
  write_npy(feature(3), x.data(), shape);  // (C,H,W) is as good as (1,C,H,W)
  const std::string text = refusal(folder_);
  expect_contains(text, "3.npy: found nan at channel 1, row 0, column 1");
  EXPECT_THROW(load(*open_source(folder_, {.verify = false}), 3), Error);

  x[13] = 0;
  write_npy(feature(3), x.data(), other);
  expect_contains(refusal(folder_), "3.npy: found shape (2, 4, 3), wanted (2, 3, 4) as in");
  expect_contains(refusal(folder_), "0.npy");

  fs::remove(feature(1));
  expect_contains(refusal(folder_), "no 1.npy");
}

TEST_F(FeatureData, FeaturesWithoutLabelsHaveNoClasses) {
  features(2, 2);
  fs::remove_all(folder_ / "toy_labels");
  const auto source = open_source(folder_);
  EXPECT_EQ(source->info().classes, 0);
  EXPECT_EQ(source->info().notes.size(), 1u);
}

TEST_F(FeatureData, TwoSetsOfFeaturesAreAmbiguous) {
  features(2, 2);
  fs::create_directories(folder_ / "other_features");
  fs::copy_file(feature(0), folder_ / "other_features/0.npy");
  expect_contains(refusal(folder_), "other_features and toy_features");
}

}  // namespace
}  // namespace ebb
