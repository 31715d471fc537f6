// `ebb inspect` of data and of runs.
#include "cli_fixture.h"
#include "image_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliInspect : public CliTest {
 protected:
  // A square of one colour.
  void write_square(const std::string& name, int size, uint8_t value) const {
    fs::create_directories(at(name).parent_path());
    const std::vector<uint8_t> pixels(static_cast<size_t>(size * size * 3), value);
    write_png(at(name), pixels.data(), size, size, 3);
  }
};

TEST_F(CliInspect, ClassNamesAreUtf8AndCounted) {
  write_square("png/Äpfel/a.png", 8, 10);
  write_square("png/\xe6\xa2\xa8/a.png", 8, 10);
  write_square("png/\xe6\xa2\xa8/b.png", 8, 10);
  const Json seen = json({"inspect", "png", "--json"});
  EXPECT_EQ(seen["class_names"], (std::vector<std::string>{"Äpfel", "\xe6\xa2\xa8"}));
  EXPECT_EQ(seen["class_counts"], (std::vector<int>{1, 2}));
  EXPECT_EQ(seen["fingerprint"].get<std::string>().size(), 16u);
}

TEST_F(CliInspect, OneFileBehindALoopOfLinksIsOneFile) {
  write_square("png/a/x.png", 8, 10);
  for (const char* name : {"b", "c", "d", "e", "f", "g", "h"}) {
    fs::create_directory_symlink("..", at("png/a") / name);
  }
  EXPECT_EQ(json({"inspect", "png", "--json"})["count"], 1);
}

TEST_F(CliInspect, OutShowsWhatTheNetworkSees) {
  for (int i = 0; i < 20; ++i) write_square(fmt::format("png/dark/{}.png", i), 16, 0);
  for (int i = 0; i < 3; ++i) write_square(fmt::format("png/light/{}.png", i), 48, 200);
  const Result result = succeed({"inspect", "png", "--image-size", "32", "--out", "grid.png"});
  EXPECT_TRUE(contains(result.out, "grid.png")) << result.story();
  // Two rows, dark and light, of 8 places of 64 pixels with borders of 2.
  const ImageInfo info = probe_image(at("grid.png"));
  EXPECT_EQ(info.width, 8 * 66 + 2);
  EXPECT_EQ(info.height, 2 * 66 + 2);
  const auto pixels = image_fixture::decoded(at("grid.png"));
  const auto place = [&](int row, int column) {
    return pixels[static_cast<size_t>(((row * 66 + 34) * info.width + column * 66 + 34) * 3)];
  };
  for (int column = 0; column < 8; ++column) {
    EXPECT_EQ(place(0, column), 0);
    EXPECT_EQ(place(1, column), column < 3 ? 200 : 255);  // 255: a free place
  }
}

TEST_F(CliInspect, OutIsRefusedWhereThereIsNothingToShow) {
  write_features();
  expect_refused(run({"inspect", "latents", "--out", "grid.png"}), 2, {"--out", "features"});
  write_idx();
  expect_refused(run({"inspect", "idx", "--out", "grid.txt"}), 2, {"--out", "grid.txt"});
  EXPECT_FALSE(fs::exists(at("grid.png")));
}

TEST_F(CliInspect, ARunIsDescribedByItsNewestCheckpoint) {
  write_idx();
  succeed(training("runs/a", {"--steps", "4", "--save-every", "2"}));
  const Json seen = json({"inspect", "runs/a", "--json"});
  EXPECT_EQ(seen["kind"], "run");
  EXPECT_EQ(seen["step"], 4);
  EXPECT_EQ(seen["samples"], 16);
  EXPECT_EQ(seen["classes"], 4);
  EXPECT_EQ(seen["model"]["width"], 16);
  EXPECT_EQ(seen["log_lines"], 4);
  EXPECT_TRUE(contains(seen["settings"].get<std::string>(), "batch = 4"));
  const Result text = succeed({"inspect", "runs/a"});
  EXPECT_TRUE(contains(text.out, "4 steps")) << text.story();
  EXPECT_TRUE(contains(text.out, "step-000000004.safetensors")) << text.story();
  expect_refused(run({"inspect", "runs/a", "--out", "grid.png"}), 2, {"--out", "runs/a"});
}

TEST_F(CliInspect, ARunWithoutACheckpointIsARunToo) {
  write_idx();
  succeed(training("runs/a", {"--steps", "2", "--save-every", "0"}));
  EXPECT_EQ(json({"inspect", "runs/a", "--json"})["log_lines"], 2);
}

}  // namespace
}  // namespace ebb::cli_fixture
