// `ebb grad` against values that others computed (tests/golden), and on batches that are no
// batches.
#include <cmath>
#include <limits>

#include "cli_fixture.h"
#include "formats/safetensors.h"

namespace ebb::cli_fixture {
namespace {

std::string golden(const std::string& name) {
  return std::string(EBB_SOURCE_DIR "/tests/golden/") + name + ".safetensors";
}

std::vector<double> values(const SafetensorsReader& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  if (entry == nullptr) return {};
  std::vector<double> read(static_cast<size_t>(entry->count()));
  file.read_f64(*entry, read.data(), entry->count());
  return read;
}

double relative_error(const std::vector<double>& found, const std::vector<double>& wanted) {
  EXPECT_EQ(found.size(), wanted.size());
  double square = 0, norm = 0;
  for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
    square += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(square / norm);
}

class CliGrad : public CliTest {
 protected:
  static Args grad(const std::string& name, const std::string& out, const Args& more = {}) {
    return Args{"grad",
                "--weights",
                golden(name + ".weights"),
                "--batch-file",
                golden(name + ".batch"),
                "--out",
                out} +
           more;
  }
  // A file that grad wrote holds what tests/golden/NAME does, and nothing else.
  void expect_golden(const std::string& name, const std::string& out) const {
    const SafetensorsReader found(at(out));
    const SafetensorsReader wanted(golden(name));
    EXPECT_LE(relative_error(values(found, "loss"), values(wanted, "loss")), 1e-6);
    EXPECT_LE(relative_error(values(found, "output"), values(wanted, "output")), 2e-5);
    EXPECT_EQ(found.find("output")->shape, wanted.find("output")->shape);
    int gradients = 0;
    for (const TensorEntry& entry : wanted.tensors()) {
      if (entry.name.rfind("grad.", 0) != 0) continue;
      ++gradients;
      ASSERT_NE(found.find(entry.name), nullptr) << entry.name;
      EXPECT_EQ(found.find(entry.name)->type, TensorType::F32) << entry.name;
      EXPECT_EQ(found.find(entry.name)->shape, entry.shape) << entry.name;
      EXPECT_LE(relative_error(values(found, entry.name), values(wanted, entry.name)), 2e-5)
          << entry.name;
    }
    EXPECT_GT(gradients, 20);
    EXPECT_EQ(found.tensors().size(), static_cast<size_t>(gradients) + 2);
  }
  // The batch of ddpm_small with one tensor replaced.
  void write_batch(const std::string& replaced, const TensorData& with) const {
    const SafetensorsReader reader(golden("ddpm_small.batch"));
    std::vector<std::vector<char>> memory;
    std::vector<TensorData> tensors;
    for (const TensorEntry& entry : reader.tensors()) {
      memory.emplace_back(static_cast<size_t>(entry.bytes()));
      reader.read(entry, memory.back().data(), entry.bytes());
      tensors.push_back({entry.name, entry.type, entry.shape, memory.back().data()});
      if (entry.name == replaced) tensors.back() = with;
    }
    write_safetensors(at("b.safetensors"), tensors, {}, false);
  }
  // The weights of a golden case without metadata, or with tensors besides, as w.safetensors.
  void write_weights(const std::string& name, const std::vector<TensorData>& besides = {},
                     bool metadata = false) const {
    const SafetensorsReader reader(golden(name + ".weights"));
    std::vector<std::vector<char>> memory;
    std::vector<TensorData> tensors = besides;
    for (const TensorEntry& entry : reader.tensors()) {
      memory.emplace_back(static_cast<size_t>(entry.bytes()));
      reader.read(entry, memory.back().data(), entry.bytes());
      tensors.push_back({entry.name, entry.type, entry.shape, memory.back().data()});
    }
    std::map<std::string, std::string> kept;
    if (metadata) kept = reader.metadata();
    write_safetensors(at("w.safetensors"), tensors, kept, false);
  }
  static Args grad_of_copy(const std::string& name, const std::string& out, const Args& more = {}) {
    Args args = grad(name, out, more);
    args[2] = "w.safetensors";
    return args;
  }
  void expect_batch_error(const std::vector<std::string>& nouns,
                          Remedy remedy = Remedy::optional) const {
    Args args = grad("ddpm_small", "g.safetensors");
    args[4] = "b.safetensors";
    expect_refused(run(args), 4, nouns, remedy);
    EXPECT_FALSE(fs::exists(at("g.safetensors")));
  }
};

class CliGradOf : public CliGrad, public testing::WithParamInterface<const char*> {};

TEST_P(CliGradOf, LossOutputAndEveryGradientAgreeWithTheReference) {
  succeed(grad(GetParam(), "g.safetensors"));
  expect_golden(GetParam(), "g.safetensors");
}

// The reference takes the whole batch at once: what is added up of parts is as close to it.
TEST_P(CliGradOf, EveryTechniqueAgreesWithTheReference) {
  const std::vector<Args> kTechniques = {{"--micro-batch", "1"},
                                         {"--micro-batch", "2"},
                                         {"--micro-batch", "2", "--order", "layer"},
                                         {"--micro-batch", "1", "--recompute", "all"},
                                         {"--recompute", "qkv+gelu"}};
  for (const Args& techniques : kTechniques) {
    SCOPED_TRACE(testing::PrintToString(techniques));
    succeed(grad(GetParam(), "g.safetensors", techniques));
    expect_golden(GetParam(), "g.safetensors");
  }
}

TEST_P(CliGradOf, TheBytesAreTheSameEachTimeAndUnderEveryBudget) {
  succeed(grad(GetParam(), "a.safetensors"));
  succeed(grad(GetParam(), "b.safetensors"));
  succeed(grad(GetParam(), "c.safetensors", {"--memory", "64M"}));
  succeed(grad(GetParam(), "d.safetensors", {"--memory", "2G"}));
  const std::string first = file("a.safetensors");
  EXPECT_GT(first.size(), 1000u);
  for (const char* name : {"b.safetensors", "c.safetensors", "d.safetensors"}) {
    EXPECT_TRUE(file(name) == first) << name;
  }
}

TEST_P(CliGradOf, EveryMemoryDeclarationHolds) {
  succeed(grad(GetParam(), "a.safetensors"));
  succeed(grad(GetParam(), "b.safetensors", {"--debug-memory"}));
  EXPECT_TRUE(file("a.safetensors") == file("b.safetensors"));
}

TEST_P(CliGradOf, AFileWithoutMetadataIsToldByItsShapesAndTheFlags) {
  const bool flow = std::string(GetParam()) == "flow_small";
  write_weights(GetParam());
  succeed(grad(GetParam(), "a.safetensors"));
  const Args said = flow ? Args{"--heads", "2", "--objective", "flow"} : Args{"--heads", "3"};
  succeed(grad_of_copy(GetParam(), "b.safetensors", said));
  EXPECT_TRUE(file("a.safetensors") == file("b.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Cases, CliGradOf, testing::Values("ddpm_small", "flow_small"));

// The flags that describe ddpm_small, and for each a value that contradicts it.
TEST_F(CliGrad, EveryFlagOfTheModelIsUsedOrRefusedByName) {
  const std::vector<Args> kSaid = {{"--width", "24", "64"},         {"--depth", "2", "7"},
                                   {"--heads", "3", "2"},           {"--patch", "2", "4"},
                                   {"--image-size", "8", "16"},     {"--channels", "4", "3"},
                                   {"--objective", "ddpm", "flow"}, {"--qk-norm", "none", "rms"}};
  Args right;
  for (const Args& said : kSaid) right = right + Args{said[0], said[1]};
  write_weights("ddpm_small");
  succeed(grad("ddpm_small", "g.safetensors", right));
  succeed(grad_of_copy("ddpm_small", "g.safetensors", right));
  fs::remove(at("g.safetensors"));
  for (const Args& said : kSaid) {
    const Args wrong = {said[0], said[2]};
    expect_refused(run(grad("ddpm_small", "g.safetensors", wrong)), 2, {said[0], said[2], said[1]});
    if (said[0] == "--heads" || said[0] == "--objective") continue;  // no tensor tells these
    expect_refused(run(grad_of_copy("ddpm_small", "g.safetensors", Args{"--heads", "3"} + wrong)),
                   2, {said[0], said[2], said[1]});
  }
  for (const bool metadata : {true, false}) {
    write_weights("ddpm_small", {}, metadata);
    expect_refused(
        run(grad_of_copy("ddpm_small", "g.safetensors", {"--heads", "3", "--no-learn-sigma"})), 2,
        {"--no-learn-sigma"});
    expect_refused(
        run(grad_of_copy("ddpm_small", "g.safetensors", {"--model", "DiT-S/2", "--heads", "3"})), 2,
        {"--model", "DiT-S/2", "width", "384", "24"});
  }
  expect_refused(
      run(grad_of_copy("ddpm_small", "g.safetensors", {"--heads", "3", "--objective", "flow"})), 5,
      {"final_layer.linear.weight", "flow"});
  EXPECT_FALSE(fs::exists(at("g.safetensors")));
}

TEST_F(CliGrad, NormsOfQueriesAndKeysAreToldFromTheTensors) {
  const std::vector<float> ones(8, 1.0f);
  std::vector<TensorData> norms;
  const auto add = [&](const char* ending) {
    for (const char* part : {"blocks.0.attn.q_norm", "blocks.0.attn.k_norm", "blocks.1.attn.q_norm",
                             "blocks.1.attn.k_norm"}) {
      norms.push_back({std::string(part) + ending, TensorType::F32, {8}, ones.data()});
    }
  };
  const auto gradient = [&](const Args& more = {}) {
    write_weights("ddpm_small", norms);
    return run(grad_of_copy("ddpm_small", "g.safetensors", more));
  };
  const std::string none = gradient({"--heads", "3"}).out;
  add(".weight");
  const std::string rms = gradient().out;  // heads: the width over that of a norm
  expect_refused(gradient({"--qk-norm", "layer"}), 2, {"--qk-norm", "layer", "rms"});
  add(".bias");
  const std::string layer = gradient().out;
  expect_refused(gradient({"--qk-norm", "none"}), 2, {"--qk-norm", "none", "layer"});
  expect_refused(gradient({"--heads", "2"}), 2, {"--heads", "2", "3"});
  EXPECT_EQ(rms.rfind("loss ", 0), 0u);
  EXPECT_NE(none, rms);
  EXPECT_NE(none, layer);
  EXPECT_NE(rms, layer);
}

TEST_F(CliGrad, ATensorThatIsNotReadIsRefusedByName) {
  const std::vector<float> values(24 * 24, 1.0f);
  for (const char* name : {"blocks.2.attn.proj.weight", "lora.weight", "ema.lora.weight"}) {
    for (const bool metadata : {true, false}) {
      write_weights("ddpm_small", {{name, TensorType::F32, {24, 24}, values.data()}}, metadata);
      expect_refused(run(grad_of_copy("ddpm_small", "g.safetensors", {"--heads", "3"})), 5,
                     {"w.safetensors", name});
    }
  }
  const std::vector<int64_t> labels(3);
  write_batch("y", {"yy", TensorType::I64, {3}, labels.data()});
  expect_batch_error({"b.safetensors", "yy"}, Remedy::wanted);
  EXPECT_FALSE(fs::exists(at("g.safetensors")));
}

// A checkpoint holds averages and moments besides.
TEST_F(CliGrad, ACheckpointsOwnTensorsAreKnown) {
  write_idx();
  succeed(training("r", {"--steps", "1", "--save-every", "1"}));
  const std::vector<float> pixels(64, 0.5f);
  const std::vector<int64_t> zero = {0};
  write_safetensors(at("b.safetensors"),
                    {{"x", TensorType::F32, {1, 1, 8, 8}, pixels.data()},
                     {"noise", TensorType::F32, {1, 1, 8, 8}, pixels.data()},
                     {"t", TensorType::I64, {1}, zero.data()},
                     {"y", TensorType::I64, {1}, zero.data()}},
                    {}, false);
  succeed({"grad", "--weights", checkpoint("r", 1).string(), "--batch-file", "b.safetensors",
           "--out", "g.safetensors"});
}

TEST_F(CliGrad, ALabelOutOfRangeIsRefused) {
  for (const int64_t bad : {int64_t{-1}, int64_t{6}, std::numeric_limits<int64_t>::max()}) {
    const std::vector<int64_t> labels = {0, bad, 5};
    write_batch("y", {"y", TensorType::I64, {3}, labels.data()});
    expect_batch_error({"b.safetensors", "y", std::to_string(bad)});
  }
}

TEST_F(CliGrad, ATimeOutOfRangeIsRefused) {
  for (const int64_t bad : {int64_t{-1}, int64_t{1000}}) {
    const std::vector<int64_t> times = {0, 1, bad};
    write_batch("t", {"t", TensorType::I64, {3}, times.data()});
    expect_batch_error({"b.safetensors", "t", std::to_string(bad)});
  }
}

TEST_F(CliGrad, ANumberThatIsNotFiniteIsRefused) {
  for (const std::string name : {"x", "noise"}) {
    for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> pixels(3 * 4 * 8 * 8, 0.25f);
      pixels[100] = bad;
      write_batch(name, {name, TensorType::F32, {3, 4, 8, 8}, pixels.data()});
      expect_batch_error({"b.safetensors", name, "100"});
    }
  }
}

TEST_F(CliGrad, ATensorOfAWrongShapeOrTypeIsRefused) {
  const std::vector<float> pixels(3 * 4 * 8 * 8, 0.25f);
  write_batch("noise", {"noise", TensorType::F32, {3, 4, 16, 4}, pixels.data()});
  expect_batch_error({"b.safetensors", "noise", "shape"});
  write_batch("y", {"y", TensorType::F32, {3}, pixels.data()});
  expect_batch_error({"b.safetensors", "y"});
  write_batch("noise", {"nose", TensorType::F32, {3, 4, 8, 8}, pixels.data()});
  expect_batch_error({"b.safetensors", "noise"});
}

TEST_F(CliGrad, EveryErrorOfABatchIsFollowedByALineThatSaysWhatToTry) {
  const std::vector<int64_t> whole = {-1, -1, -1};
  write_batch("y", {"y", TensorType::I64, {3}, whole.data()});
  expect_batch_error({"y"}, Remedy::wanted);
  write_batch("t", {"t", TensorType::I64, {3}, whole.data()});
  expect_batch_error({"t"}, Remedy::wanted);
  const std::vector<float> pixels(3 * 4 * 8 * 8, std::nanf(""));
  write_batch("x", {"x", TensorType::F32, {3, 4, 8, 8}, pixels.data()});
  expect_batch_error({"x"}, Remedy::wanted);
  write_batch("noise", {"noise", TensorType::F32, {3, 4, 16, 4}, pixels.data()});
  expect_batch_error({"noise"}, Remedy::wanted);
}

TEST_F(CliGrad, WeightsThatAreNotFiniteEndWithTheirOwnExitCode) {
  const SafetensorsReader reader(golden("ddpm_small.weights"));
  std::string bytes = slurp(golden("ddpm_small.weights"));
  const TensorEntry* entry = reader.find("blocks.0.mlp.fc1.weight");
  ASSERT_NE(entry, nullptr);
  const float bad = std::nanf("");
  const size_t data = bytes.size() - reader.tensors().back().end;
  std::memcpy(bytes.data() + data + entry->begin, &bad, sizeof(bad));
  spill(at("w.safetensors"), bytes);
  Args args = grad("ddpm_small", "g.safetensors");
  args[2] = "w.safetensors";
  expect_refused(run(args), 6, {});
  EXPECT_FALSE(fs::exists(at("g.safetensors")));
}

TEST_F(CliGrad, FilesThatAreMissingOrForeignAreNamed) {
  Args args = grad("ddpm_small", "g.safetensors");
  args[4] = "nosuch.safetensors";
  expect_refused(run(args), 4, {"nosuch.safetensors"});
  args = grad("ddpm_small", "g.safetensors");
  args[2] = "nosuch.safetensors";
  expect_refused(run(args), 5, {"nosuch.safetensors"});
  args[2] = golden("diffusion_tables");
  expect_refused(run(args), 5, {"diffusion_tables.safetensors"});
  expect_refused(run(grad("ddpm_small", "/proc/g.safetensors")), 5, {"/proc/g.safetensors"});
  EXPECT_TRUE(files_below(folder_).empty());
}

}  // namespace
}  // namespace ebb::cli_fixture
