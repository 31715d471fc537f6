// Training data that is missing, damaged or not what it seems, met by `ebb train`.
#include <cmath>

#include "cli_fixture.h"
#include "image_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliData : public CliTest {
 protected:
  static Args try_on(const std::string& data) {
    return training("out", {"--steps", "2", "--save-every", "0"}, data);
  }
  // Exit code 4, and no trace of a run.
  void expect_data_error(const std::string& data, const std::vector<std::string>& nouns) const {
    expect_refused(run(try_on(data)), 4, nouns);
    EXPECT_FALSE(fs::exists(at("out")));
  }
  void write_png(const std::string& name, int size) const {
    fs::create_directories(at(name).parent_path());
    image_fixture::make_png(at(name), size, size, image_fixture::gradient(size, size, 3));
  }
  void write_pngs(int count) const {
    for (int i = 0; i < count; ++i) write_png("png/" + std::to_string(1000 + i) + ".png", 8);
  }
  void write_feature(const std::string& name, const std::string& bytes) const {
    spill(at("latents/" + name), bytes);
  }
};

TEST_F(CliData, AFolderThatIsNotThereIsNamed) { expect_data_error("nosuch", {"nosuch"}); }

TEST_F(CliData, AnEmptyFolderIsRefused) {
  fs::create_directories(at("nothing"));
  expect_data_error("nothing", {"nothing", "no image"});
}

TEST_F(CliData, AFileInsteadOfAFolderIsRefused) {
  spill(at("notes.txt"), "hello");
  expect_data_error("notes.txt", {"notes.txt", "wanted a folder"});
}

TEST_F(CliData, OneDamagedImageAmongManyIsLeftOutWithANote) {
  write_pngs(120);
  spill(at("png/zz_damaged.png"), "this is not a picture");
  const Result result = succeed(try_on("png"));
  EXPECT_TRUE(contains(result.out + result.err, "zz_damaged.png")) << result.story();
  EXPECT_TRUE(contains(result.out, "120 samples")) << result.story();
  EXPECT_EQ(log("out").size(), 2u);
}

TEST_F(CliData, ATruncatedImageAmongManyIsLeftOutToo) {
  write_pngs(120);
  write_png("png/zz_cut.png", 8);
  fs::resize_file(at("png/zz_cut.png"), fs::file_size(at("png/zz_cut.png")) - 30);
  const Result result = succeed(try_on("png"));
  EXPECT_TRUE(contains(result.out + result.err, "zz_cut.png")) << result.story();
  EXPECT_TRUE(contains(result.out, "120 samples")) << result.story();
}

TEST_F(CliData, ManyDamagedImagesAreRefusedNamingThem) {
  write_pngs(50);
  for (const char* name : {"w", "x", "y"}) {
    spill(at("png/zz_" + std::string(name) + ".png"), "this is not a picture");
  }
  EXPECT_TRUE(contains(succeed(try_on("png")).out, "50 samples"));
  fs::remove_all(at("out"));
  spill(at("png/zz_z.png"), "this is not a picture");
  expect_data_error("png", {"png", "zz_w.png", "4 of 54"});
  for (const char* name : {"w", "x", "y", "z"}) {  // what to do names all of them
    const std::string path = "png/zz_" + std::string(name) + ".png";
    EXPECT_TRUE(contains(run(try_on("png")).err_line(1), path)) << path;
  }
}

TEST_F(CliData, InspectCountsWhatTrainCounts) {
  write_pngs(50);
  write_png("png/zz_cut.png", 8);  // damaged behind a good header
  fs::resize_file(at("png/zz_cut.png"), fs::file_size(at("png/zz_cut.png")) - 30);
  const Json seen = json({"inspect", "png", "--json"});
  EXPECT_EQ(seen["count"], 50);
  EXPECT_EQ(seen["skipped"], 1);
  EXPECT_TRUE(contains(succeed(try_on("png")).out, "50 samples"));
}

TEST_F(CliData, FeaturesThatAreNotSquareAreRefused) {
  for (const auto& [height, width] : std::vector<std::pair<int, int>>{{16, 8}, {8, 2048}}) {
    fs::remove_all(at("latents"));
    for (int i = 0; i < 4; ++i) {
      const std::string shape = fmt::format("(4, {}, {})", height, width);
      const std::vector<float> values(static_cast<size_t>(4 * height * width), 0.5f);
      write_feature(fmt::format("x_features/{}.npy", i), npy("<f4", shape, raw(values)));
    }
    expect_data_error("latents", {"latents", fmt::format("4x{}x{}", height, width), "square"});
    expect_refused(run(Args{"plan", "--data", "latents", "--batch", "1"} + model()), 4, {"square"});
  }
}

TEST_F(CliData, IdxThatIsNotSquareNeedsAnImageSize) {
  write_idx(32);
  std::string images = file("idx/train-images-idx3-ubyte");
  images[11] = 4;
  images[15] = 16;
  spill(at("idx/train-images-idx3-ubyte"), images);
  expect_data_error("idx", {"idx", "1x4x16", "square"});
  EXPECT_TRUE(contains(run(try_on("idx")).err_line(1), "--image-size 4"));
  succeed(try_on("idx") + Args{"--image-size", "8"});
}

// Pictures of so many pixels that they are not decoded on opening, and that end too early.
class CliBadPictures : public CliData {
 protected:
  void write_huge(int count) const {
    const int side = 16384;
    fs::create_directories(at("png"));
    image_fixture::make_png(at("png/huge0.png"), side, side,
                            image_fixture::Bytes(static_cast<size_t>(side) * side / 8),
                            {.colour = PNG_COLOR_TYPE_GRAY, .depth = 1});
    fs::resize_file(at("png/huge0.png"), 1000);
    for (int i = 1; i < count; ++i) {
      fs::copy_file(at("png/huge0.png"), at(fmt::format("png/huge{}.png", i)));
    }
  }
  static Args steps(const std::string& out, int count, const Args& more = {}) {
    return training(
        out,
        Args{"--steps", std::to_string(count), "--save-every", "6", "--image-size", "8"} + more,
        "png");
  }
  static int times(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++found;
    return found;
  }
};

TEST_F(CliBadPictures, AreReplacedAndNamedOnceAndResumingMakesNoDifference) {
  write_pngs(32);
  write_huge(3);
  const Result whole = succeed(steps("a", 24) + Args{"--loader-threads", "3"});
  EXPECT_TRUE(contains(whole.out, "35 samples")) << whole.story();
  for (int i = 0; i < 3; ++i) {
    const std::string name = fmt::format("huge{}.png", i);
    EXPECT_EQ(times(whole.out + whole.err, name), 1) << whole.story();
  }
  EXPECT_EQ(log("a").size(), 24u);
  succeed(steps("b", 12));
  succeed(steps("b", 24, {"--resume"}));
  EXPECT_TRUE(tensors("a", 24) == tensors("b", 24));
}

TEST_F(CliBadPictures, TooManyEndTheRunNamingThem) {
  write_pngs(32);
  write_huge(4);
  const Result result = run(steps("a", 1000));
  expect_refused(result, 4, {".png", "4 of 36"});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(contains(result.err, fmt::format("huge{}.png", i))) << result.story();
  }
}

TEST_F(CliData, MixedSizesNeedAnImageSize) {
  write_png("png/a.png", 8);
  write_png("png/b.png", 16);
  write_png("png/c.png", 16);
  expect_data_error("png", {"png", "8x8", "16x16", "--image-size"});
  succeed(try_on("png") + Args{"--image-size", "8"});
}

TEST_F(CliData, ANegativeLabelIsRefused) {
  write_features();
  write_feature("x_labels/3.npy", npy("<i8", "(1,)", raw(std::vector<int64_t>{-1})));
  expect_data_error("latents", {"3.npy", "-1"});
}

// Features of a mirrored picture are not the picture's features, mirrored.
TEST_F(CliData, FeaturesAreNotMirrored) {
  write_features();
  expect_refused(run(try_on("latents") + Args{"--flip", "on"}), 2, {"--flip", "features"});
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CliData, ALabelThatIsMissingIsNamed) {
  write_features();
  fs::remove(at("latents/x_labels/5.npy"));
  expect_data_error("latents", {"5.npy"});
}

TEST_F(CliData, FeaturesOfAWrongTypeAreRefused) {
  write_features();
  const std::vector<int64_t> whole(256, 1);
  const std::vector<int64_t> pairs(256, 0);
  for (const auto& bytes :
       {npy("<i8", "(1, 4, 8, 8)", raw(whole)), npy("<c8", "(1, 4, 8, 8)", raw(pairs)),
        npy("|O", "(1, 4, 8, 8)", raw(whole))}) {
    write_feature("x_features/6.npy", bytes);
    expect_data_error("latents", {"6.npy"});
  }
}

TEST_F(CliData, FeaturesOfAWrongShapeAreRefused) {
  write_features();
  const std::string zeros = raw(std::vector<float>(256));
  for (const char* shape : {"(1, 4, 4, 16)", "(256,)", "(4, 1, 8, 8)", "(2, 2, 8, 8)"}) {
    write_feature("x_features/6.npy", npy("<f4", shape, zeros));
    expect_data_error("latents", {"6.npy", "shape"});
  }
}

TEST_F(CliData, TruncatedFeaturesAreRefused) {
  write_features();
  write_feature("x_features/6.npy", npy("<f4", "(1, 4, 8, 8)", std::string(1000, 'x')));
  expect_data_error("latents", {"6.npy"});
}

TEST_F(CliData, FeaturesThatAreNotFiniteAreRefused) {
  write_features();
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(256, 0.5f);
    values[77] = bad;
    write_feature("x_features/2.npy", npy("<f4", "(1, 4, 8, 8)", raw(values)));
    expect_data_error("latents", {"2.npy", std::isnan(bad) ? "nan" : "inf"});
  }
}

TEST_F(CliData, ATruncatedIdxFileIsRefused) {
  write_idx();
  fs::resize_file(at("idx/train-images-idx3-ubyte"), 500);
  expect_data_error("idx", {"train-images-idx3-ubyte"});
}

TEST_F(CliData, LabelsOfAnotherSetAreRefused) {
  write_idx(32);
  const std::string images = file("idx/train-images-idx3-ubyte");
  write_idx(16);
  spill(at("idx/train-images-idx3-ubyte"), images);
  expect_data_error("idx", {"train-labels-idx1-ubyte", "16", "32"});
}

TEST_F(CliData, AFileThatIsDamagedDuringTheRunEndsItWithTheLastStateKept) {
  write_pngs(8);
  launch_.seconds = 30;
  Child child(training("out", {"--steps", "1000000", "--save-every", "50"}, "png"), launch_);
  while (child.running() && !fs::exists(checkpoint("out", 50))) usleep(1000);
  spill(at("png/1003.png"), "no longer a picture");
  expect_refused(child.wait(), 4, {"1003.png"});
  succeed({"inspect", checkpoint("out", static_cast<int64_t>(log("out").size()) / 50 * 50)});
}

}  // namespace
}  // namespace ebb::cli_fixture
