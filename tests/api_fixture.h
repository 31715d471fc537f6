// A small run through the public headers.
#pragma once

#include <ebb/ebb.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "api/impl.h"
#include "machine/machine_file.h"
#include "model_fixture.h"
#include "temp_folder.h"

namespace ebb {

// 24 pictures of 8 x 8 in two classes: bright on the left, bright on the right.
struct Pictures {
  static constexpr int64_t kSize = 8, kCount = 24;
  Pictures() : pixels(kCount * kSize * kSize), labels(kCount) {
    for (int64_t i = 0; i < std::ssize(pixels); ++i) {
      const int64_t sample = i / (kSize * kSize), x = i % kSize;
      const bool right = sample % 2 == 1;
      pixels[i] = static_cast<uint8_t>((x >= kSize / 2) == right ? 220 + sample : 10 + sample);
      labels[sample] = right ? 1 : 0;
    }
  }
  Data data() const { return Data::of_pixels(pixels, labels, kSize); }
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
};

class Api : public testing::Test {
 protected:
  // A machine that nobody has measured: read from a file, as a user would.
  MeasuredMachine machine(int threads = 1) const {
    const auto file = folder_.path() / "machine.json";
    std::ofstream(file) << machine_json(middling_machine(cpu_device(threads)));
    return MeasuredMachine::read(file);
  }
  static Model model() {
    Model m;
    m.width = 32;
    m.depth = 2;
    m.heads = 2;
    m.patch = 2;
    m.objective = "flow";
    return m;
  }
  static Training training() {
    Training t;
    t.batch = 8;
    t.memory = int64_t{1} << 30;
    t.lr = 2e-3;
    t.ema = 0.9;
    t.seed = 3;
    t.drawing.steps = 4;
    t.drawing.guidance = 2;
    return t;
  }
  TrainingPlan plan(const Training& t) const { return {machine(), model(), t, pictures_.data()}; }
  TrainingPlan plan() const { return plan(training()); }
  // Every tensor, one after the other.
  static std::vector<float> state_of(const ebb::Run& run) {
    std::vector<float> all;
    for (const std::string& name : run.tensor_names()) {
      const ebb::Run::Tensor tensor = run.tensor(name);
      all.insert(all.end(), tensor.values.begin(), tensor.values.end());
    }
    return all;
  }
  static void train(ebb::Run& run, int64_t until) {
    while (run.steps_done() < until) run.step();
  }
  // The error that it throws: its code, and that it has something to say and to try.
  template <typename Call>
  static void expect_error(Exit code, const std::string& says, Call call) {
    try {
      call();
      ADD_FAILURE() << "nothing is thrown, wanted: " << says;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
    }
  }

  const Pictures pictures_;
  TempFolder folder_;
};

}  // namespace ebb
