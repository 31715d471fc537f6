// `ebb sample`: every sampler, every kind of output, and what it refuses.
#include <zip.h>

#include "cli_fixture.h"
#include "formats/image.h"
#include "formats/npy.h"

namespace ebb::cli_fixture {
namespace {

class CliSample : public CliTest {
 protected:
  CliSample() { write_idx(); }

  // A short run in a folder of the objective's name, far enough from its start to draw something.
  void train_model(const std::string& objective, const Args& more = {}) const {
    succeed(training(
        objective,
        Args{"--steps", "20", "--lr", "0.01", "--ema", "0.5", "--objective", objective} + more));
  }
  static Args draw(const std::string& from, const std::string& out, const Args& more = {}) {
    return Args{"sample", "--from", from, "--out", out, "--count", "2", "--steps", "3"} + more;
  }
  std::vector<float> floats(const std::string& name) const {
    NpyFile npy_file(at(name));
    std::vector<float> values(static_cast<size_t>(npy_file.header().count));
    npy_file.read(values.data());
    return values;
  }
  void expect_finite(const std::string& name, size_t count) const {
    const auto values = floats(name);
    EXPECT_EQ(values.size(), count);
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
  }
};

TEST_F(CliSample, EverySamplerDraws) {
  train_model("ddpm");
  train_model("flow");
  std::vector<std::string> drawn;
  for (const auto& [objective, sampler] : std::vector<std::pair<std::string, std::string>>{
           {"ddpm", "ddpm"}, {"ddpm", "ddim"}, {"flow", "euler"}, {"flow", "heun"}}) {
    const std::string out = sampler + ".npy";
    const Result result = succeed(draw(objective, out, {"--sampler", sampler}));
    EXPECT_TRUE(contains(result.out, sampler + " 3 steps")) << result.story();
    expect_finite(out, 8 * 64);
    for (const std::string& other : drawn) EXPECT_NE(file(out), other);
    drawn.push_back(file(out));
  }
}

TEST_F(CliSample, ASamplerOfTheOtherObjectiveIsRefused) {
  train_model("flow");
  expect_refused(run(draw("flow", "a.png", {"--sampler", "ddpm"})), 2, {"--sampler", "flow"});
  EXPECT_FALSE(fs::exists(at("a.png")));
}

TEST_F(CliSample, TheSameSeedDrawsTheSameFiles) {
  train_model("ddpm");
  for (const std::string kind : {".png", ".npz", ".npy"}) {
    succeed(draw("ddpm", "a" + kind, {"--seed", "3", "--sampler", "ddpm"}));
    succeed(draw("ddpm", "b" + kind, {"--seed", "3", "--sampler", "ddpm"}));
    succeed(draw("ddpm", "c" + kind, {"--seed", "4", "--sampler", "ddpm"}));
    EXPECT_FALSE(file("a" + kind).empty());
    EXPECT_TRUE(file("a" + kind) == file("b" + kind)) << kind;
    EXPECT_FALSE(file("a" + kind) == file("c" + kind)) << kind;
  }
}

TEST_F(CliSample, TheBatchThatFitsDoesNotChangeThePictures) {
  train_model("flow");
  succeed(draw("flow", "together.npy", {"--seed", "3"}));
  succeed(draw("flow", "pairs.npy", {"--seed", "3", "--batch", "2"}));
  const auto together = floats("together.npy");
  const auto pairs = floats("pairs.npy");
  ASSERT_EQ(together.size(), pairs.size());
  for (size_t i = 0; i < together.size(); ++i) {
    ASSERT_NEAR(together[i], pairs[i], 1e-4) << "value " << i % 64 << " of sample " << i / 64;
  }
}

TEST_F(CliSample, AGridHasARowForEachClass) {
  train_model("flow");
  succeed(draw("flow", "grid.png", {"--classes", "0,3,1", "--count", "5"}));
  const ImageInfo info = probe_image(at("grid.png"));
  constexpr int64_t kBorder = 2;
  const int64_t cell = (info.width - kBorder) / 5;
  EXPECT_GE(cell, 8 + kBorder);
  EXPECT_EQ(info.width, 5 * cell + kBorder);
  EXPECT_EQ(info.height, 3 * cell + kBorder);
  EXPECT_EQ(info.channels, 1);
}

std::string entry_of(const fs::path& path, const char* name) {
  int error = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &error);
  EXPECT_NE(archive, nullptr) << error;
  if (archive == nullptr) return "";
  zip_stat_t stat;
  EXPECT_EQ(zip_stat(archive, name, 0, &stat), 0) << name;
  std::string bytes(stat.size, '\0');
  zip_file_t* in = zip_fopen(archive, name, 0);
  EXPECT_EQ(zip_fread(in, bytes.data(), bytes.size()), static_cast<zip_int64_t>(bytes.size()));
  zip_fclose(in);
  zip_discard(archive);
  return bytes;
}

TEST_F(CliSample, AnNpzHoldsWhatEvaluationSuitesRead) {
  train_model("flow");
  succeed(draw("flow", "set.npz", {"--classes", "2,1"}));
  const std::string pictures = entry_of(at("set.npz"), "arr_0.npy");
  EXPECT_TRUE(contains(pictures, "'|u1'")) << pictures.substr(0, 128);
  EXPECT_TRUE(contains(pictures, "(4, 8, 8, 3)")) << pictures.substr(0, 128);
  const std::string values = pictures.substr(pictures.size() - 4 * 8 * 8 * 3);
  for (size_t i = 0; i < values.size(); i += 3) {
    ASSERT_TRUE(values[i] == values[i + 1] && values[i] == values[i + 2]) << "not gray at " << i;
  }
  const std::string labels = entry_of(at("set.npz"), "arr_1.npy");
  EXPECT_TRUE(contains(labels, "(4,)"));
  EXPECT_TRUE(labels.ends_with(raw(std::vector<int64_t>{2, 2, 1, 1})));
}

TEST_F(CliSample, AFolderGetsOnePictureForEachSample) {
  train_model("flow");
  succeed(draw("flow", "pictures", {"--classes", "1,2"}));
  const auto names = files_below(at("pictures"));
  ASSERT_EQ(names.size(), 4u);
  for (const std::string& name : names) {
    const ImageInfo info = probe_image(at("pictures/" + name));
    EXPECT_EQ(info.width, 8) << name;
    EXPECT_EQ(info.height, 8) << name;
  }
}

TEST_F(CliSample, AveragedAndRawWeightsDrawDifferently) {
  train_model("flow");
  succeed(draw("flow", "default.npy"));
  succeed(draw("flow", "ema.npy", {"--weights", "ema"}));
  succeed(draw("flow", "raw.npy", {"--weights", "raw"}));
  EXPECT_TRUE(file("default.npy") == file("ema.npy"));
  EXPECT_FALSE(file("ema.npy") == file("raw.npy"));
}

TEST_F(CliSample, ARunWithoutAveragesSaysHowToDrawFromIt) {
  train_model("flow", {"--ema", "0"});
  const Result result = run(draw("flow", "a.npy"));
  expect_refused(result, 5, {"ema."});
  EXPECT_TRUE(contains(result.err_line(1), "--weights raw")) << result.story();
  succeed(draw("flow", "a.npy", {"--weights", "raw"}));
}

TEST_F(CliSample, GuidanceAndClassesMatter) {
  train_model("flow");
  succeed(draw("flow", "plain.npy", {"--classes", "1", "--guidance", "1"}));
  succeed(draw("flow", "guided.npy", {"--classes", "1", "--guidance", "4"}));
  succeed(draw("flow", "other.npy", {"--classes", "2", "--guidance", "4"}));
  EXPECT_FALSE(file("plain.npy") == file("guided.npy"));
  EXPECT_FALSE(file("guided.npy") == file("other.npy"));
}

TEST_F(CliSample, AClassThatTheModelDoesNotHaveIsRefused) {
  train_model("flow");
  for (const char* classes : {"4", "-1", "0,9", "1,,2", "cat", "99999999999999999999"}) {
    expect_refused(run(draw("flow", "a.png", {"--classes", classes})), 2, {"--classes"},
                   Remedy::optional);
  }
  EXPECT_FALSE(fs::exists(at("a.png")));
}

TEST_F(CliSample, AnOutputOfAnUnknownKindIsRefused) {
  train_model("flow");
  expect_refused(run(draw("flow", "a.jpg")), 2, {"--out", "a.jpg"});
  EXPECT_FALSE(fs::exists(at("a.jpg")));
}

TEST_F(CliSample, SizesThatAreNoSizesAreRefused) {
  train_model("flow");
  for (const char* flag : {"--count", "--steps", "--batch"}) {
    for (const char* value : {"0", "-1", "99999999999999999999", "abc", ""}) {
      expect_refused(run(draw("flow", "a.png", {flag, value})), 2, {flag}, Remedy::optional);
    }
  }
}

TEST_F(CliSample, ACheckpointsOwnFileCanBeDrawnFrom) {
  train_model("flow", {"--save-every", "10"});
  succeed(draw("flow", "newest.npy"));
  succeed(draw(checkpoint("flow", 20), "last.npy"));
  succeed(draw(checkpoint("flow", 10), "earlier.npy"));
  EXPECT_TRUE(file("newest.npy") == file("last.npy"));
  EXPECT_FALSE(file("newest.npy") == file("earlier.npy"));
}

TEST_F(CliSample, AModelOfLatentsWritesLatentsAndSaysSo) {
  write_features();
  succeed(training("run", {"--steps", "2"}, "latents"));
  const Result result = succeed(draw("run", "grid.png"));
  EXPECT_TRUE(contains(result.out, "latents")) << result.story();
  EXPECT_FALSE(fs::exists(at("grid.png")));
  expect_finite("grid.npy", 4 * 4 * 64);
  EXPECT_TRUE(contains(result.out, "wrote grid.npy")) << result.story();
}

TEST_F(CliSample, NumbersThatAreNotFiniteAreAnError) {
  // A rate that makes weights of thousands: drawing with them overflows.
  const Result wild =
      run(training("wild", {"--steps", "500", "--save-every", "1", "--lr", "1000"}));
  ASSERT_EQ(wild.code, 6) << wild.story();
  const Result result =
      run(draw("wild", "wild.npy", {"--weights", "raw", "--no-clip", "--steps", "20"}));
  if (result.code == 0) {
    expect_finite("wild.npy", 8 * 64);
  } else {
    expect_refused(result, 6, {});
  }
}

}  // namespace
}  // namespace ebb::cli_fixture
