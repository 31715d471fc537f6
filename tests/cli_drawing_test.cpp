// Pictures while training: which, how many, and what they may cost.
#include "cli_fixture.h"
#include "train/pictures.h"

namespace ebb::cli_fixture {
namespace {

TEST(Pictures, ClassesAreSpreadOverAllOfThem) {
  EXPECT_EQ(spread_classes(0, 8), std::vector<int32_t>({0}));
  EXPECT_EQ(spread_classes(3, 8), std::vector<int32_t>({0, 1, 2}));
  EXPECT_EQ(spread_classes(1000, 4), std::vector<int32_t>({0, 250, 500, 750}));
  EXPECT_EQ(spread_classes(10, 1), std::vector<int32_t>({0}));
}

class CliDrawing : public CliTest {
 protected:
  CliDrawing() { write_idx(); }
  // A run whose default pictures would take far longer than its steps, and than may always be
  // taken, even where they are drawn fast; one of them would not, even where they are drawn slowly.
  static Args slow(const std::string& out, const Args& more = {}) {
    return Args{"train", "--data",         "idx", "--out",   out,  "--batch",
                "4",     "--steps",        "2",   "--width", "64", "--depth",
                "3",     "--heads",        "2",   "--patch", "2",  "--sample-every",
                "2",     "--sample-steps", "1000"} +
           more;
  }
  static Args planned(const Args& more) {
    return Args{"plan",    "--model", "DiT-XL/2", "--batch", "16",
                "--steps", "5000",    "--memory", "100G",    "--json"} +
           more;
  }
};

TEST_F(CliDrawing, TakesATwentiethOfTheTimeBetweenPicturesAtMost) {
  const Json by_default = json(planned({}));
  const double between = 1000 * by_default["predicted_step_seconds"].get<double>();
  EXPECT_GT(by_default["drawing_seconds"], 0);
  EXPECT_LE(by_default["drawing_seconds"], 0.05 * between);
  const Json wished = json(planned({"--count", "8", "--sample-classes", "1,2,3,4,5,6,7,8"}));
  EXPECT_GT(wished["drawing_seconds"], 0.05 * between) << "what is asked for is drawn";
  const Json often = json(planned({"--sample-every", "1"}));
  EXPECT_EQ(often["drawing_seconds"], 0) << "not one can be afforded";
}

TEST_F(CliDrawing, SaysThatThereAreFewerAndKeepsItForTheResumedRun) {
  const Result result = succeed(slow("run"));
  EXPECT_TRUE(contains(result.out, "pictures: ")) << result.story();
  EXPECT_TRUE(contains(result.out, "--count")) << result.story();
  const std::string settings = slurp(at("run/settings.toml"));
  EXPECT_FALSE(contains(settings, "count = 8\n")) << settings;
  const Result resumed = succeed({"train", "--resume", "--out", "run", "--steps", "4"});
  EXPECT_FALSE(contains(resumed.out, "pictures: 32")) << resumed.story();
}

TEST_F(CliDrawing, TakesClassesByNumberAndRefusesOthers) {
  succeed(slow("run", {"--sample-classes", "3,0", "--count", "2", "--sample-steps", "2"}));
  EXPECT_TRUE(fs::exists(at("run/samples/step-000000002.png")));
  expect_refused(run(slow("other", {"--sample-classes", "0,4"})), 2, {"--sample-classes", "4"});
}

}  // namespace
}  // namespace ebb::cli_fixture
