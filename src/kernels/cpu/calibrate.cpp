#include "kernels/cpu/calibrate.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>

#include "base/median.h"
#include "base/text.h"
#include "base/threads.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/trial.h"
#include "kernels/cpu/vec.h"

namespace ebb {

namespace {

// ---- what is timed ------------------------------------------------------------------------------

// Rows from the few of the modulation to those of a batch, over the weights of narrow and wide
// models, into the MLP and out of it: strides near a multiple of a page can cost half the speed. No
// product is so large that a slow machine would take long over it.
constexpr double kMostFlops = 3e9;
constexpr int64_t kAttentionRows = 1024;  // more than the caches of one core hold
void add_linear_shapes(std::vector<OpParams>& shapes) {
  constexpr std::pair<int64_t, int64_t> kWeights[] = {
      {16, 384}, {128, 512}, {384, 1536}, {768, 3072}, {1152, 4608}};
  for (const auto& [narrow, wide] : kWeights) {
    for (const auto& [K, N] : {std::pair{narrow, wide}, std::pair{wide, narrow}}) {
      for (const int64_t R : {1, 8, 32, 256, 2048}) {
        if (Linear{R, K, N}.flops() > kMostFlops) continue;
        shapes.push_back(Linear{R, K, N});
        shapes.push_back(LinearBackwardInput{R, K, N});
        shapes.push_back(LinearBackwardParams{R, K, N});
        if (R < 32 || narrow < 128) continue;
        if (K < N) shapes.push_back(Linear{R, K, N, LinearEnd::gelu_aside});
        if (K > N) shapes.push_back(LinearBackwardInput{R, K, N, true});
      }
    }
  }
}

// The same kernels with operands of 16 bits, over fewer sizes.
void add_narrow_shapes(std::vector<OpParams>& shapes) {
  constexpr DType k16 = DType::bf16;
  constexpr std::pair<int64_t, int64_t> kWeights[] = {{128, 512}, {384, 1536}, {768, 2304}};
  for (const auto& [narrow, wide] : kWeights) {
    for (const auto& [K, N] : {std::pair{narrow, wide}, std::pair{wide, narrow}}) {
      for (const int64_t R : {256, 1024}) {
        if (Linear{R, K, N}.flops() > kMostFlops) continue;
        shapes.push_back(Linear{R, K, N, LinearEnd::plain, k16, k16, k16});
        shapes.push_back(LinearBackwardInput{R, K, N, false, k16, k16, k16});
        shapes.push_back(LinearBackwardParams{R, K, N, false, k16, k16});
        if (K < N) shapes.push_back(Linear{R, K, N, LinearEnd::gelu_aside, k16, k16, k16});
        if (K > N) shapes.push_back(LinearBackwardInput{R, K, N, true, k16, k16, k16});
      }
    }
  }
  for (const int64_t T : {64, 256, 1024}) {
    shapes.push_back(Attention{kAttentionRows / T, T, 4, 64, k16});
    shapes.push_back(AttentionBackward{kAttentionRows / T, T, 4, 64, k16});
  }
  constexpr int64_t D = 384, T = 64;
  for (const int64_t B : {1, 16, 64}) {
    AdamW adamw{B * T * D, 0.9, 0.999, 1e-8, 0, true};
    adamw.moments = Moments::coded;
    const std::vector<OpParams> more = {Gelu{B * T * D, k16},
                                        AdaLN{B, T, D, 6, 0, 1, k16},
                                        AdaLNBackward{B, T, D, 6, 0, 1, true, k16},
                                        AddGated{B, T, D, 6, 2, k16},
                                        AddGatedBackward{B, T, D, 6, 2, k16},
                                        adamw};
    shapes.insert(shapes.end(), more.begin(), more.end());
  }
}

void add_attention_shapes(std::vector<OpParams>& shapes) {
  for (const int64_t d : {32, 64, 72}) {
    for (const int64_t T : {16, 64, 256, 1024}) {
      shapes.push_back(Attention{kAttentionRows / T, T, 4, d});
      shapes.push_back(AttentionBackward{kAttentionRows / T, T, 4, d});
    }
  }
}

// Matrices that are exchanged as products of two with so many columns.
void add_power_shapes(std::vector<OpParams>& shapes) {
  for (const int64_t R : {4, 16, 64}) {
    for (const auto& [narrow, wide] : {std::pair<int64_t, int64_t>{128, 512}, {768, 3072}}) {
      for (const auto& [N, K] : {std::pair{narrow, wide}, std::pair{wide, narrow}}) {
        shapes.push_back(PowerProject{N, K, R});
        shapes.push_back(PowerBack{N, K, R});
        shapes.push_back(PowerSum{N, K, R});
      }
      shapes.push_back(Orthonormalize{wide, R});
    }
  }
}

// Everything else, on about n elements each.
void add_other_shapes(std::vector<OpParams>& shapes, int64_t n) {
  constexpr int64_t D = 384, C = 4;
  const int64_t rows = std::max<int64_t>(1, n / D);
  const int64_t T = std::min<int64_t>(64, rows);
  const int64_t B = rows / T;
  const int64_t pixels = std::min<int64_t>(1024, n / C);
  const int64_t images = n / C / pixels;
  const int64_t side = pixels == 1024 ? 32 : 8;
  const int64_t d = 64, H = D / d;
  const AdamW adamw{n, 0.9, 0.999, 1e-8, 0, true};
  const std::vector<OpParams> more = {
      ReadSamples{images, C, side, DType::u8, true},
      FillNormal{images, C * pixels, Stream::noise},
      Diffuse{images, C * pixels, Objective::ddpm},
      Patchify{images, C, side, 2},
      Unpatchify{images, C, side, 2},
      UnpatchifyBackward{images, C, side, 2},
      AddPositions{B, T, D},
      Silu{n},
      SiluBackward{n},
      Gelu{n},
      Add{n},
      AddTo{n},
      Repeat{n},
      Zero{n},
      AdaLN{B, T, D, 6, 0, 1},
      AdaLNBackward{B, T, D, 6, 0, 1, true},
      AddGated{B, T, D, 6, 2},
      AddGatedBackward{B, T, D, 6, 2},
      QkNorm{B, T, H, d, QkNormKind::layer},
      QkNormBackward{B, T, H, d, QkNormKind::layer},
      DdpmLoss{images, C, pixels, true, 1},
      FlowLoss{images, C, pixels, true, 1},
      SquaredNorm{n, 0},
      adamw,
      Lion{n, 0.9, 0.99, 0, true},
      Adafactor{std::max<int64_t>(2, n / 384), 384, 0, true},
      StructureSquares{n / 384, 384, 384, 1, true, true},
      Shrink{n / 384, 384, 1e-3, true, 1e-3, 384, 1, true},
      Guide{images, C, pixels, C},
      DiffusionStep{images, C, pixels, true, true, true},
      FlowStep{images, C, pixels, true, true, 0},
      ColumnSums{B, T, D},
      EncodeInt8{n, 0},
      EncodeTopK{n, std::max<int64_t>(1, n / 100), false, 0},
      EncodeTopK{n, std::max<int64_t>(1, n / 100), true, 0},
  };
  shapes.insert(shapes.end(), more.begin(), more.end());
}

// Those that have a few numbers for each sample.
void add_sample_shapes(std::vector<OpParams>& shapes, int64_t B) {
  const std::vector<OpParams> more = {
      DrawTimes{B, Objective::ddpm, TimeSampling::uniform},
      DropLabels{B, 1000, 0.1f},
      FillTime{B, 0},
      TimeEmbed{B, Objective::ddpm},
      LabelEmbed{B, 384, 1001},
      LabelEmbedBackward{B, 384, 1001},
      SumLosses{B, 1},
      ClipScale{0, B, 1},
      LabelsAndNull{B, 1000},
  };
  shapes.insert(shapes.end(), more.begin(), more.end());
}

// ---- timing -------------------------------------------------------------------------------------

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The times of one shape. A run during which the system took a CPU away tells of the system.
class Samples {
 public:
  void add(double seconds, bool disturbed) { (disturbed ? disturbed_ : clean_).push_back(seconds); }
  size_t clean() const { return clean_.size(); }
  double best_guess() const {
    return clean_.empty() ? *std::min_element(disturbed_.begin(), disturbed_.end())
                          : median(clean_);
  }
  double mean() const {  // of all
    const double sum = std::accumulate(clean_.begin(), clean_.end(), 0.0) +
                       std::accumulate(disturbed_.begin(), disturbed_.end(), 0.0);
    return sum / static_cast<double>(clean_.size() + disturbed_.size());
  }

 private:
  std::vector<double> clean_, disturbed_;
};

int64_t preemptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

std::string cpu_identity(int threads) {
  std::string model = "unknown CPU";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
    model = line.substr(colon + 2);
    break;
  }
  return fmt::format("{}, {}, {} threads", printable(model), cpu_kernels(), threads);
}

std::vector<OpParams> calibration_shapes() {
  std::vector<OpParams> shapes;
  add_linear_shapes(shapes);
  add_attention_shapes(shapes);
  add_narrow_shapes(shapes);
  add_power_shapes(shapes);
  for (const int64_t n : {384, 24'576, 196'608, 1'572'864}) add_other_shapes(shapes, n);
  for (const int64_t B : {1, 64}) add_sample_shapes(shapes, B);
  return shapes;
}

std::vector<OpTiming> calibrate_cpu(const CalibrationEffort& effort) {
  std::vector<cpu::Trial> trials;
  int64_t bytes = 0;
  const std::vector<OpParams> shapes = calibration_shapes();
  for (const OpParams& params : shapes) {
    trials.emplace_back(params);
    bytes = std::max(bytes, trials.back().bytes());
  }
  const cpu::Pages pages(bytes, cpu::Pages::Size::huge);
  const double start = now();
  for (const cpu::Trial& trial : trials) trial.run(pages.data());  // threads and pages
  // All shapes in turn, again and again: what slows the machine for a while spoils one sample of
  // many shapes rather than all samples of one.
  std::vector<Samples> samples(trials.size());
  bool wanted = true;
  for (int round = 0; wanted && (round < effort.least_rounds || now() - start < effort.seconds);
       ++round) {
    wanted = false;
    for (size_t i = 0; i < trials.size(); ++i) {
      if (samples[i].clean() >= effort.clean_samples) continue;
      const int64_t before = preemptions();
      const double seconds = trials[i].run(pages.data());
      samples[i].add(seconds, preemptions() != before);
      wanted = true;
    }
  }
  // A step is a sum of ops, disturbed ones too: it takes as much longer than their medians say as
  // all that was timed here did.
  double usual = 0, taken = 0;
  for (const Samples& each : samples) {
    usual += each.best_guess();
    taken += each.mean();
  }
  std::vector<OpTiming> timings;
  for (size_t i = 0; i < trials.size(); ++i) {
    timings.push_back({shapes[i], samples[i].best_guess() * std::max(1.0, taken / usual)});
  }
  return timings;
}

}  // namespace ebb
