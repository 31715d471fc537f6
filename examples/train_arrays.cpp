// Trains on pictures that are in memory, discs and squares, within 64 MiB, and draws some:
//   train_arrays OUT.pgm [CACHE.json]     the cache keeps what was measured of this machine
#include <ebb/ebb.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <vector>

constexpr int64_t kSize = 16, kPixels = kSize * kSize, kCount = 2000, kSteps = 600;

// (count, size, size): bright discs, label 0, and squares, label 1, anywhere on dark ground.
void make_pictures(std::vector<uint8_t>& pixels, std::vector<int32_t>& labels) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> radius(4, 6), place(6, 9);
  for (int64_t i = 0; i < kCount; ++i) {
    const float r = radius(random), cx = place(random), cy = place(random);
    labels.push_back(static_cast<int32_t>(i % 2));
    for (int64_t p = 0; p < kPixels; ++p) {
      const float x = std::abs(static_cast<float>(p % kSize) - cx);
      const float y = std::abs(static_cast<float>(p / kSize) - cy);
      const float away = labels.back() == 0 ? std::hypot(x, y) : std::max(x, y);
      pixels.push_back(static_cast<uint8_t>(std::clamp(128 + 200 * (r - away), 20.0f, 235.0f)));
    }
  }
}

// All pictures side by side, in rows of eight, as a PGM file.
void write_pictures(const char* path, const std::vector<float>& values) {
  const int64_t columns = 8, rows = std::ssize(values) / kPixels / columns;
  std::vector<char> grid(columns * rows * kPixels);
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const int64_t picture = i / kPixels, y = i % kPixels / kSize, x = i % kSize;
    const int64_t row = picture / columns * kSize + y, column = picture % columns * kSize + x;
    grid[row * columns * kSize + column] =
        static_cast<char>(std::lround(127.5f * (std::clamp(values[i], -1.0f, 1.0f) + 1)));
  }
  std::ofstream out(path, std::ios::binary);
  out << "P5\n" << columns * kSize << ' ' << rows * kSize << "\n255\n";
  out.write(grid.data(), std::ssize(grid));
}

int main(int argc, char** argv) try {
  ebb::MeasuredMachine::Options options;
  if (argc > 2) options.cache = argv[2];
  const auto machine = ebb::MeasuredMachine::measure(options);  // before there is data

  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
  make_pictures(pixels, labels);
  const auto data = ebb::Data::of_pixels(pixels, labels, kSize);

  const ebb::Model model{.width = 64, .depth = 4, .heads = 4, .patch = 4, .objective = "flow"};
  const ebb::Training training{.batch = 32,
                               .memory = 64 << 20,
                               .lr = 3e-3,
                               .ema = 0.99,
                               .drawing = {.steps = 30, .guidance = 3}};
  const ebb::TrainingPlan plan(machine, model, training, data);
  std::printf("%ld parameters, %ld of %ld bytes, %.1f ms a step\n", plan.parameters(),
              plan.process_bytes(), plan.budget_bytes(), 1000 * plan.step_seconds());

  ebb::Run run(plan);
  double loss = 0;
  while (run.steps_done() < kSteps) {
    loss += run.step().loss / 100;
    if (run.steps_done() % 100 != 0) continue;
    std::printf("step %ld: loss %.4f\n", run.steps_done(), loss);
    loss = 0;
  }
  std::vector<int32_t> wanted(16, 0);
  std::fill(wanted.begin() + 8, wanted.end(), 1);  // a row of discs, a row of squares
  write_pictures(argc > 1 ? argv[1] : "drawn.pgm", run.draw(wanted, 7));
} catch (const ebb::Error& e) {
  std::fprintf(stderr, "error: %s\n  %s\n", e.what(), e.hint().c_str());
  return static_cast<int>(e.code());
}
