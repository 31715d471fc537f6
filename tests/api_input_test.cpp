// What users of the library may give it, right and wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>

#include "api_fixture.h"

namespace ebb {
namespace {

// The fixture's pictures, made one by one.
class Made : public OwnSamples {
 public:
  explicit Made(const Pictures& pictures) : pictures_(pictures) {}
  int64_t count() const override { return Pictures::kCount; }
  int64_t channels() const override { return 1; }
  int64_t size() const override { return Pictures::kSize; }
  int64_t classes() const override { return 2; }
  void load(float* values, int64_t index) const override {
    if (index == failing) throw std::runtime_error("no such sample");
    constexpr int64_t kEach = Pictures::kSize * Pictures::kSize;
    for (int64_t i = 0; i < kEach; ++i) {
      values[i] = static_cast<float>(pictures_.pixels[index * kEach + i]) / 127.5f - 1;
    }
  }
  int32_t label(int64_t index) const override { return pictures_.labels[index] + shift; }
  int64_t held_bytes() const override { return held; }

  std::atomic<int64_t> failing{-1};  // loaders ask meanwhile
  int64_t held = 0;
  int32_t shift = 0;

 private:
  const Pictures& pictures_;
};

class ApiInput : public Api {
 protected:
  std::vector<float> trained_on(const Data& data) const {
    ebb::Run run(TrainingPlan(machine(), model(), training(), data));
    train(run, 3);
    return state_of(run);
  }
};

TEST_F(ApiInput, PixelsValuesAndOwnSamplesAreTheSameTraining) {
  std::vector<float> values;
  for (const uint8_t pixel : pictures_.pixels) {
    values.push_back(static_cast<float>(pixel) / 127.5f - 1);
  }
  const auto expected = trained_on(pictures_.data());
  EXPECT_EQ(trained_on(Data::of_values(values, pictures_.labels, Pictures::kSize, 1)), expected);
  EXPECT_EQ(trained_on(Data::of(std::make_shared<Made>(pictures_))), expected);
}

TEST_F(ApiInput, PixelsOfThreeChannelsLieBesideEachOther) {
  // Sample 0 red, sample 1 green on the left half: (count, size, size, channels).
  std::vector<uint8_t> pixels(2 * 4 * 4 * 3);
  for (int64_t i = 0; i < 16; ++i) pixels[i * 3] = 255;
  for (int64_t i = 0; i < 16; ++i) pixels[48 + i * 3 + 1] = i % 4 < 2 ? 255 : 0;
  const Data data = Data::of_pixels(pixels, {}, 4, 3);
  EXPECT_EQ(data.count(), 2);
  EXPECT_EQ(data.classes(), 0);
  std::vector<uint8_t> x(48);
  int32_t label = -1;
  inside(data).load(reinterpret_cast<std::byte*>(x.data()), &label, 1, {});
  EXPECT_EQ(label, 0);
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(x[i], i / 16 == 1 && i % 4 < 2 ? 255 : 0) << i;
}

TEST_F(ApiInput, ArraysThatDoNotFitEachOtherAreRefused) {
  const auto& [pixels, labels] = pictures_;
  expect_error(Exit::data, "found an array of 1535 elements, wanted a multiple of 64",
               [&] { Data::of_pixels(std::span(pixels).first(1535), labels, 8); });
  expect_error(Exit::data, "found an array of 0 elements", [&] { Data::of_pixels({}, {}, 8); });
  expect_error(Exit::data, "found 23 labels, wanted 24",
               [&] { Data::of_pixels(pixels, std::span(labels).first(23), 8); });
  expect_error(Exit::data, "found 2 channels, wanted 1 or 3",
               [&] { Data::of_pixels(pixels, labels, 8, 2); });
  expect_error(Exit::data, "found a size of 0", [&] { Data::of_pixels(pixels, labels, 0); });
  std::vector<int32_t> wrong = labels;
  wrong[5] = -1;
  expect_error(Exit::data, "sample 5: found label -1, wanted 0 to",
               [&] { Data::of_pixels(pixels, wrong, 8); });
}

TEST_F(ApiInput, OwnSamplesThatCannotBeAreRefused) {
  const auto made = std::make_shared<Made>(pictures_);
  made->shift = 1;
  expect_error(Exit::data, "sample 1: found label 2, wanted 0 to 1", [&] { Data::of(made); });
  expect_error(Exit::data, "found no samples", [&] { Data::of(nullptr); });
}

TEST_F(ApiInput, WhatOwnSamplesThrowComesOutOfTheStepAndTheRunCanGoOn) {
  const auto made = std::make_shared<Made>(pictures_);
  ebb::Run unbroken(TrainingPlan(machine(), model(), training(), Data::of(made)));
  train(unbroken, 6);
  const auto six_steps = state_of(unbroken);
  ebb::Run run(TrainingPlan(machine(), model(), training(), Data::of(made)));
  made->failing = 7;
  expect_error(Exit::data, "data: sample 7: no such sample", [&] { train(run, 6); });
  const int64_t done = run.steps_done();
  EXPECT_LT(done, 3);  // one pass over the data
  expect_error(Exit::data, "no such sample", [&] { run.step(); });
  run.save(folder_.path() / "saved.safetensors");
  made->failing = -1;
  train(run, 6);
  EXPECT_EQ(state_of(run), six_steps);
}

TEST_F(ApiInput, WhatDataHoldsIsPartOfThePlan) {
  const auto made = std::make_shared<Made>(pictures_);
  const auto process_bytes = [&] {
    return TrainingPlan(machine(), model(), training(), Data::of(made)).process_bytes();
  };
  const int64_t without = process_bytes();
  made->held = 5 << 20;
  EXPECT_EQ(process_bytes(), without + (5 << 20));
}

TEST_F(ApiInput, AModelThatContradictsItsDataIsRefused) {
  Model m = model();
  m.image_size = 16;
  expect_error(Exit::usage, "--image-size: found 16, but the data has 8",
               [&] { TrainingPlan(machine(), m, training(), pictures_.data()); });
  m = model();
  m.classes = 1;
  expect_error(Exit::usage, "--classes: found 1, but the data has labels up to 1",
               [&] { TrainingPlan(machine(), m, training(), pictures_.data()); });
  m = model();
  m.name = "DiT-Q/2";
  expect_error(Exit::usage, "'DiT-Q/2' is not a known size",
               [&] { TrainingPlan(machine(), m, training()); });
}

TEST_F(ApiInput, SettingsOutOfRangeAreRefused) {
  const auto refused = [&](const std::string& says, auto change) {
    Training t = training();
    change(t);
    expect_error(Exit::usage, says, [&] { plan(t); });
  };
  refused("--batch: found 0", [](Training& t) { t.batch = 0; });
  refused("--lr: found nan", [](Training& t) { t.lr = std::nan(""); });
  refused("--memory: found -1", [](Training& t) { t.memory = -1; });
  refused("--seed: found -1", [](Training& t) { t.seed = -1; });
  refused("--betas: found 1,", [](Training& t) { t.betas = {0.9, 1.0}; });
  refused("--time-sampling: found 'always'", [](Training& t) { t.time_sampling = "always"; });
  refused("--steps: found 0", [](Training& t) { t.drawing.steps = 0; });
  refused("Drawing::together: found -1", [](Training& t) { t.drawing.together = -1; });
  refused("--betas contradicts --optimizer adafactor", [](Training& t) {
    t.betas = {0.9, 0.99};
    t.techniques["optimizer"] = "adafactor";
  });
}

TEST_F(ApiInput, ARunNeedsDataAndDrawsOnlyWhatWasPlanned) {
  expect_error(Exit::usage, "found a plan without data",
               [&] { ebb::Run run(TrainingPlan(machine(), model(), training())); });
  Training none = training();
  none.drawing.together = 0;
  ebb::Run run(plan(none));
  expect_error(Exit::usage, "draw: found a plan without drawing",
               [&] { run.draw(std::vector<int32_t>{0}, 1); });
  ebb::Run drawing(plan());
  expect_error(Exit::usage, "draw: found label 2 for sample 1, wanted 0 to 1", [&] {
    drawing.draw(std::vector<int32_t>{0, 2}, 1);
  });
  EXPECT_TRUE(drawing.draw(std::vector<int32_t>{}, 1).empty());
}

TEST_F(ApiInput, AnUnknownTensorIsRefusedWithOneThatIsNear) {
  ebb::Run run(plan());
  EXPECT_EQ(run.tensor("ema.blocks.0.attn.qkv.weight").shape, (std::vector<int64_t>{96, 32}));
  expect_error(Exit::usage, "did you mean", [&] { run.tensor("blocks.0.attn.qkv.weights"); });
}

TEST_F(ApiInput, CheckpointsOfOtherRunsAreRefusedAndChangeNothing) {
  const auto file = folder_.path() / "one.safetensors";
  ebb::Run one(plan());
  train(one, 2);
  one.save(file);
  const auto refuses = [&](Exit code, const std::string& says, const TrainingPlan& other) {
    ebb::Run run(other);
    train(run, 1);
    const auto before = state_of(run);
    expect_error(code, says, [&] { run.load(file); });
    EXPECT_EQ(state_of(run), before);
    EXPECT_EQ(run.step().step, 2);
  };
  Training t = training();
  t.seed = 4;
  refuses(Exit::disk, "--seed 3, not 4", plan(t));
  t = training();
  t.batch = 4;
  refuses(Exit::disk, "--batch 8, not 4", plan(t));
  Pictures others;
  others.pixels[0] = 0;
  refuses(Exit::data, "the data is not what this run was trained on",
          TrainingPlan(machine(), model(), training(), others.data()));
  expect_error(Exit::disk, "", [&] { one.load(folder_.path() / "nothing.safetensors"); });
}

TEST_F(ApiInput, ARunThatHasLostItsNumbersSavesNothingAndCanBeLoadedAgain) {
  Training wild = training();
  wild.lr = 1000;
  ebb::Run run(plan(wild));
  run.save(folder_.path() / "start.safetensors");
  expect_error(Exit::numbers, "is not finite", [&] { train(run, 400); });
  expect_error(Exit::numbers, "not that of whole steps", [&] { run.step(); });
  expect_error(Exit::numbers, "not that of whole steps",
               [&] { run.save(folder_.path() / "lost.safetensors"); });
  run.load(folder_.path() / "start.safetensors");
  EXPECT_EQ(run.step().step, 1);
}

TEST_F(ApiInput, AMachineIsWrittenAsItWasRead) {
  const MeasuredMachine read = machine();
  const auto file = folder_.path() / "again.json";
  std::ofstream(file) << read.json();
  EXPECT_EQ(MeasuredMachine::read(file).json(), read.json());
  EXPECT_EQ(read.threads(), 1);
  EXPECT_EQ(read.outside_bytes(), 16 << 20);
}

TEST_F(ApiInput, AMachineIsMeasuredByWhomeverItIsToldTo) {
  MeasuredMachine::Options options;
  options.threads = 1;
  int asked = 0;
  options.time = [&](int threads) {
    asked += threads;
    return MeasuredMachine::Times{};
  };
  const MeasuredMachine measured = MeasuredMachine::measure(options);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(measured.threads(), 1);
  EXPECT_GT(measured.outside_bytes(), 0);
  EXPECT_GT(measured.available_bytes(), 0);
  options.offload = folder_.path() / "nowhere";
  expect_error(Exit::disk, "is not a directory", [&] { MeasuredMachine::measure(options); });
  options = {};
  options.threads = -1;
  expect_error(Exit::usage, "--threads: found -1", [&] { MeasuredMachine::measure(options); });
}

}  // namespace
}  // namespace ebb
