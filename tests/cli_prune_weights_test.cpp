// `ebb prune --weights` as a user runs it: which weights go, that all else goes on, and what it
// refuses.
#include <cmath>
#include <set>

#include "cli_fixture.h"
#include "model/storage.h"
#include "prune_fixture.h"
#include "state/matrix_stream.h"

namespace ebb::cli_fixture {
namespace {

class CliPruneWeights : public CliTest {
 protected:
  CliPruneWeights() { write_idx(32, 3); }

  void write(Optimizer optimizer = Optimizer::adamw) const {
    write_checkpoint(at("a.safetensors"), {info_of(config_, optimizer)});
  }
  static Args prune(const Args& more, const std::string& from = "a.safetensors",
                    const std::string& to = "p.safetensors") {
    return Args{"prune", "--from", from, "--out", to} + more;
  }
  void expect_not_pruned(const Args& more, int code, const std::vector<std::string>& nouns) const {
    SCOPED_TRACE(testing::PrintToString(more));
    const auto before = files_below(folder_);
    expect_refused(run(prune(more)), code, nouns);
    EXPECT_EQ(files_below(folder_), before);
  }
  DitConfig model_in(const std::string& name) const {
    return read_info(SafetensorsReader(at(name))).config;
  }
  // All of a tensor, with zeros.
  std::vector<float> whole(const SafetensorsReader& file, const ParamSpec& spec,
                           const std::string& prefix = "") const {
    std::vector<float> values(element_count(spec.shape));
    MatrixStream(file, spec, prefix).read(values.data(), std::ssize(values));
    return values;
  }
  // Which elements of the parent's matrix are among its `left` largest.
  static std::vector<bool> largest(const std::string& name, int64_t count, int64_t left) {
    std::vector<int64_t> order(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return std::abs(value_of(name, a)) > std::abs(value_of(name, b));
    });
    std::vector<bool> stays(static_cast<size_t>(count));
    for (int64_t i = 0; i < left; ++i) stays[order[i]] = true;
    return stays;
  }
  // A run of four steps, pruned after the second by these flags.
  void train_pruned(const std::string& out, const Args& how, const Args& more = {}) const {
    if (!fs::exists(at("first"))) {
      succeed(training("first", Args{"--width", "32", "--heads", "4", "--ema", "0.9", "--lr",
                                     "0.01", "--steps", "2", "--save-every", "2"}));
    }
    succeed(prune(how, "first", out + ".safetensors"));
    succeed(Args{"train", "--from", out + ".safetensors", "--out", out, "--steps", "4"} + more);
  }

  const DitConfig config_ = prunable_config(3, 4);
};

TEST_F(CliPruneWeights, TheSmallestOfEachMatrixGoWithTheirMomentsAndAverages) {
  write();
  const Result r = succeed(prune({"--weights", "0.5"}));
  EXPECT_TRUE(contains(r.out, "density 0.5")) << r.out;
  const SafetensorsReader file(at("p.safetensors"));
  const DitConfig config = model_in("p.safetensors");
  EXPECT_TRUE(has_density(config, 0.5));
  int sparse = 0;
  for (const ParamSpec& spec : parameters(config)) {
    const int64_t count = element_count(spec.shape);
    const auto stays = largest(spec.name, count, spec.sparse() ? count / 2 : count);
    sparse += spec.sparse() ? 1 : 0;
    if (!spec.trained()) continue;
    for (const std::string prefix : {"", "m.", "v.", "ema."}) {
      const std::vector<float> values = whole(file, spec, prefix);
      for (int64_t i = 0; i < count; ++i) {
        const float wanted = stays[i] ? value_of(prefix + spec.name, i) : 0;
        ASSERT_EQ(values[i], wanted) << prefix << spec.name << " " << i;
      }
    }
  }
  EXPECT_EQ(sparse, 3 * 5 + 3);  // of every block, the time embedder's and the last modulation's
}

TEST_F(CliPruneWeights, OverTheModelOneMagnitudeDecides) {
  write();
  succeed(prune({"--weights", "0.8", "--scope", "model"}));
  const DitConfig config = model_in("p.safetensors");
  EXPECT_NEAR(density_of(config), 0.2, 1e-4);
  const SafetensorsReader file(at("p.safetensors"));
  float least = INFINITY;
  for (const ParamSpec& spec : parameters(config)) {
    if (!spec.sparse()) continue;
    for (const float w : numbers(file, spec.name)) least = std::min(least, std::abs(w));
  }
  for (const ParamSpec& spec : parameters(config)) {
    if (!spec.sparse()) continue;
    int64_t above = 0;
    for (int64_t i = 0; i < element_count(spec.shape); ++i) {
      above += std::abs(value_of(spec.name, i)) > least ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(above), static_cast<double>(spec.left), 1) << spec.name;
  }
}

TEST_F(CliPruneWeights, TwiceIsOnceAndStructuresMayGoBeforeOrAfter) {
  write();
  succeed(prune({"--weights", "0.5"}));
  succeed(prune({"--weights", "0.5"}, "p.safetensors", "q.safetensors"));
  succeed(prune({"--weights", "0.75"}, "a.safetensors", "r.safetensors"));
  EXPECT_TRUE(file("q.safetensors") == file("r.safetensors"));
  // What is left of a sparse matrix when heads and units go is what was left in their places.
  succeed(
      prune({"--heads", "1", "--mlp", "32", "--blocks", "1"}, "p.safetensors", "s.safetensors"));
  const DitConfig config = model_in("s.safetensors");
  EXPECT_EQ(config.depth(), 2);
  EXPECT_NEAR(density_of(config), 0.5, 0.05);
  const SafetensorsReader parent(at("p.safetensors")), child(at("s.safetensors"));
  const auto parent_specs = parameters(model_in("p.safetensors"));
  std::multiset<float> before;
  for (const ParamSpec& spec : parent_specs) {
    if (spec.name == "blocks.0.mlp.fc1.weight") {
      for (const float w : numbers(parent, spec.name)) before.insert(w);
    }
  }
  for (const float w : numbers(child, "blocks.0.mlp.fc1.weight")) {
    EXPECT_EQ(before.count(w), 1u) << w;
  }
  // Every score can look at a sparse one.
  for (const char* by : {"l1", "fisher", "taylor", "activation", "fluctuation"}) {
    const bool looks = std::string(by) != "l1" && std::string(by) != "fisher";
    const Args data = looks ? Args{"--data", "idx", "--samples", "8"} : Args{};
    succeed(prune(Args{"--heads", "1", "--by", by} + data, "p.safetensors", "t.safetensors"));
  }
}

TEST_F(CliPruneWeights, TrainingGoesOnAndStopsAndGoesOnWithTheSameBits) {
  train_pruned("whole", {"--weights", "0.5"});
  EXPECT_NEAR(density_of(read_info(SafetensorsReader(checkpoint("whole", 4))).config), 0.5, 0.01);
  succeed({"train", "--from", "whole.safetensors", "--out", "parts", "--steps", "3"});
  succeed({"train", "--resume", "--out", "parts", "--steps", "4"});
  EXPECT_TRUE(tensors("whole", 4) == tensors("parts", 4));
  EXPECT_FALSE(tensors("whole", 4) == tensors("first", 2));
  // Layer by layer, released, on a disk: no bit.
  fs::create_directory(at("disk"));
  train_pruned("away", {"--weights", "0.5"},
               {"--offload", "disk", "--release", "on", "--order", "layer", "--micro-batch", "2"});
  EXPECT_TRUE(tensors("whole", 4) == tensors("away", 4));
  succeed({"sample", "--from", "whole", "--count", "1", "--steps", "2", "--out", "g.png"});
  const Result shown = succeed({"inspect", "whole"});
  EXPECT_TRUE(contains(shown.out, "density 0.5")) << shown.out;
  // 16 bits and 8.
  train_pruned("narrow", {"--weights", "0.5"}, {"--precision", "bf16", "--moments", "8bit"});
  // A model that the file contradicts.
  expect_refused(run({"train", "--resume", "--out", "parts", "--steps", "5", "--density", "0.3"}),
                 5, {"--density 0.5", "0.3"});
}

TEST_F(CliPruneWeights, EventsAndPenaltiesGoOnWithSparseWeights) {
  train_pruned("a", {"--weights", "0.5"},
               {"--prune-to", "0.5", "--prune-end", "3", "--prune-every", "3", "--l1", "0.01"});
  const DitConfig config = read_info(SafetensorsReader(checkpoint("a", 4))).config;
  EXPECT_EQ(config.blocks[0].heads, 2);
  EXPECT_GT(config.blocks[0].left[BlockShape::kQkv], 0);
  expect_refused(run({"train", "--from", "a", "--out", "b", "--steps", "6", "--group-lasso", "1"}),
                 2, {"--group-lasso", "density"});
}

// What `convert` writes is for others: all of it, zeros where nothing is left; and `grad` of both
// agrees, bit for bit.
TEST_F(CliPruneWeights, ConvertedAndSparseWeightsHaveTheSameLossAndGradients) {
  train_pruned("a", {"--weights", "0.5"});
  succeed({"convert", "--from", "a", "--to", "w.safetensors", "--weights", "raw"});
  const DitConfig config = read_info(SafetensorsReader(checkpoint("a", 4))).config;
  std::vector<float> x(2 * config.channels * config.pixels());
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const std::vector<float> t = {0.25f, 0.75f};
  const std::vector<int64_t> steps = {3, 700}, y = {0, 1};
  const Shape image = {2, config.channels, config.image_size, config.image_size};
  const bool flow = config.objective == Objective::flow;
  write_safetensors(at("b.safetensors"),
                    {{"x", TensorType::F32, image, x.data()},
                     {"noise", TensorType::F32, image, x.data()},
                     flow ? TensorData{"t", TensorType::F32, {2}, t.data()}
                          : TensorData{"t", TensorType::I64, {2}, steps.data()},
                     {"y", TensorType::I64, {2}, y.data()}},
                    {}, false);
  const auto grad = [&](const std::string& weights, const std::string& out) {
    succeed({"grad", "--weights", weights, "--batch-file", "b.safetensors", "--out", out});
    return SafetensorsReader(at(out));
  };
  const SafetensorsReader sparse = grad(checkpoint("a", 4).string(), "s.safetensors");
  const SafetensorsReader dense = grad("w.safetensors", "d.safetensors");
  for (const TensorEntry& entry : dense.tensors()) {
    const TensorEntry* other = sparse.find(entry.name);
    ASSERT_NE(other, nullptr) << entry.name;
    EXPECT_EQ(entry.shape, other->shape) << entry.name;
    const auto a = numbers(dense, entry.name), b = numbers(sparse, entry.name);
    int64_t zeros = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      if (b[i] == 0 && a[i] != 0) {
        ++zeros;
      } else {
        ASSERT_EQ(a[i], b[i]) << entry.name << " " << i;
      }
    }
    EXPECT_LE(zeros, std::ssize(a) / 2 + 1) << entry.name;
  }
  EXPECT_TRUE(numbers(dense, "loss") == numbers(sparse, "loss"));
}

TEST_F(CliPruneWeights, WhatCannotBeIsRefused) {
  write();
  for (const char* amount : {"0", "1.5", "-0.5", "all", "nan"}) {
    expect_not_pruned({"--weights", amount}, 2, {"--weights"});
  }
  expect_not_pruned({"--weights", "999999999"}, 2, {"--weights 999999999", "all of"});
  expect_not_pruned({"--weights", "0.5", "--by", "l1"}, 2, {"--by", "magnitude"});
  expect_not_pruned({"--weights", "0.5", "--mask", "m.safetensors"}, 2, {"--weights", "--mask"});
  expect_not_pruned({"--weights", "0.5", "--params", "1000", "--scope", "model"}, 2,
                    {"--weights", "--scope model"});
  write(Optimizer::adafactor);
  expect_not_pruned({"--weights", "0.5"}, 2, {"--weights", "adafactor"});
}

TEST_F(CliPruneWeights, ATargetCountsWhatIsLeftOfEachMatrix) {
  write();
  const int64_t wanted = parameter_count(config_) / 2;
  const Json j = json(prune({"--weights", "0.3", "--params", std::to_string(wanted), "--json"}));
  EXPECT_LE(j["params"], wanted);
  EXPECT_EQ(j["params"], parameter_count(model_in("p.safetensors")));
  EXPECT_NEAR(j["density"].get<double>(), 0.7, 0.01);
}

}  // namespace
}  // namespace ebb::cli_fixture
