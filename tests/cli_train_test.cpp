// Whole training runs through the program: what they log, write, repeat and draw.
#include <fstream>
#include <set>

#include "cli_fixture.h"
#include "formats/safetensors.h"
#include "image_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliTrain : public CliTest {
 protected:
  CliTrain() { write_idx(); }
  std::string final_state(const std::string& name, int step) const {
    const std::string bytes = slurp(checkpoint(name, step));
    EXPECT_GT(bytes.size(), 1000u) << name;
    return bytes;
  }
};

TEST_F(CliTrain, EveryStepIsOneLineOfTheLog) {
  succeed(training("run", {"--steps", "12", "--save-every", "0", "--warmup", "4", "--lr", "0.01"}));
  const auto lines = log("run");
  ASSERT_EQ(lines.size(), 12u);
  const std::set<std::string> kKeys = {"step",
                                       "loss",
                                       "lr",
                                       "grad_norm",
                                       "seconds",
                                       "images_per_second",
                                       "arena_peak_bytes",
                                       "process_peak_bytes"};
  for (size_t i = 0; i < lines.size(); ++i) {
    std::set<std::string> keys;
    for (const auto& [key, value] : lines[i].items()) {
      keys.insert(key);
      EXPECT_TRUE(value.is_number()) << key;
    }
    EXPECT_EQ(keys, kKeys);
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_NEAR(lines[i]["lr"].get<double>(), 0.01 * std::min(1.0, (i + 1) / 4.0), 1e-8);
    EXPECT_EQ(lines[i]["arena_peak_bytes"], lines[0]["arena_peak_bytes"]);
    EXPECT_GT(lines[i]["loss"], 0);
    EXPECT_GT(lines[i]["grad_norm"], 0);
  }
}

TEST_F(CliTrain, TrainingLowersTheLoss) {
  succeed(training("run",
                   {"--steps", "400", "--save-every", "0", "--lr", "0.01", "--objective", "flow"}));
  const auto lines = log("run");
  ASSERT_EQ(lines.size(), 400u);
  const auto mean = [&](size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += lines[i]["loss"].get<double>();
    return sum / static_cast<double>(end - begin);
  };
  EXPECT_LT(mean(300, 400), 0.8 * mean(0, 20));
}

TEST_F(CliTrain, OnlyTheNewestCheckpointsAreKept) {
  succeed(training("two", {"--steps", "11", "--save-every", "2", "--keep", "2"}));
  EXPECT_EQ(files_below(at("two/checkpoints")),
            (std::vector<std::string>{"step-000000010.safetensors", "step-000000011.safetensors"}));
  succeed(training("all", {"--steps", "5", "--save-every", "1", "--keep", "0"}));
  EXPECT_EQ(files_below(at("all/checkpoints")).size(), 5u);
}

TEST_F(CliTrain, NeverMeansNotEvenAtTheEnd) {
  succeed(training("run", {"--steps", "3", "--save-every", "0", "--sample-every", "0"}));
  EXPECT_EQ(files_below(at("run")), (std::vector<std::string>{"log.jsonl", "settings.toml"}));
}

TEST_F(CliTrain, PicturesAndCheckpointsComeWhenTheyAreDueAndAtTheEnd) {
  succeed(training("run", {"--steps", "5", "--save-every", "3", "--sample-every", "2",
                           "--sample-steps", "2", "--count", "1"}));
  EXPECT_EQ(files_below(at("run")),
            (std::vector<std::string>{"checkpoints/step-000000003.safetensors",
                                      "checkpoints/step-000000005.safetensors", "log.jsonl",
                                      "samples/step-000000002.png", "samples/step-000000004.png",
                                      "samples/step-000000005.png", "settings.toml"}));
}

TEST_F(CliTrain, TheSameSeedGivesTheSameRunAndAnotherSeedDoesNot) {
  const Args drawn = {"--steps", "6", "--sample-every", "3", "--sample-steps", "2", "--count", "1"};
  succeed(training("a", drawn + Args{"--seed", "5"}));
  succeed(training("b", drawn + Args{"--seed", "5"}));
  succeed(training("c", drawn + Args{"--seed", "6"}));
  expect_same_files("a/checkpoints", "b/checkpoints");
  expect_same_files("a/samples", "b/samples");
  EXPECT_NE(final_state("a", 6), final_state("c", 6));
  EXPECT_NE(log("a")[0]["loss"], log("c")[0]["loss"]);
}

TEST_F(CliTrain, LoaderThreadsDoNotChangeTheRun) {
  succeed(training("one", {"--steps", "6"}));
  succeed(training("three", {"--steps", "6", "--loader-threads", "3"}));
  const SafetensorsReader one(checkpoint("one", 6));
  const SafetensorsReader three(checkpoint("three", 6));
  ASSERT_EQ(one.tensors().size(), three.tensors().size());
  for (const auto& [key, value] : one.metadata()) {
    if (key.rfind("xxh3.", 0) == 0) {
      EXPECT_EQ(value, three.metadata().at(key)) << key;
    }
  }
}

TEST_F(CliTrain, SettingsTomlReproducesTheRun) {
  const std::vector<Args> kRuns = {
      {"--steps", "5"},
      {"--epochs", "1", "--objective", "flow", "--seed", "9223372036854775807", "--lr", "3e-5",
       "--qk-norm", "rms", "--time-sampling", "logit-normal", "--betas", "0.85,0.95"},
      {"--steps", "5", "--clip", "0.3", "--ema", "0", "--memory", "512M", "--classes", "9",
       "--no-learn-sigma", "--warmup", "3", "--weight-decay", "0.05", "--label-drop", "0.5"}};
  for (size_t i = 0; i < kRuns.size(); ++i) {
    const std::string first = "first" + std::to_string(i);
    const std::string again = "again" + std::to_string(i);
    succeed(training(first, kRuns[i]));
    succeed({"train", "--config", first + "/settings.toml", "--out", again});
    EXPECT_EQ(file(first + "/settings.toml"), file(again + "/settings.toml"));
    expect_same_files(first + "/checkpoints", again + "/checkpoints");
  }
}

TEST_F(CliTrain, SettingsTomlIsReadByPlanToo) {
  succeed(training("run", {"--steps", "1", "--save-every", "0"}));
  const Json plan = json({"plan", "--json", "--config", "run/settings.toml"});
  EXPECT_EQ(plan["arena_bytes"], log("run")[0]["arena_peak_bytes"]);
}

TEST_F(CliTrain, AFolderWithAnUnusualNameCanBeResumed) {
  for (const std::string name : {"my \"best\" \\data\\", "b\xc3\xa4r\n\x7f"}) {
    fs::create_directories(at(name));
    for (const auto& entry : fs::directory_iterator(at("idx"))) {
      fs::copy_file(entry.path(), at(name) / entry.path().filename());
    }
    fs::remove_all(at("run"));
    succeed(training("run", {"--steps", "2"}, name));
    succeed({"train", "--resume", "--out", "run", "--steps", "4"});
    EXPECT_EQ(log("run").size(), 4u);
  }
}

TEST_F(CliTrain, ImagesWithoutClassesTrainAndSample) {
  for (int i = 0; i < 12; ++i) {
    fs::create_directories(at("flat"));
    auto pixels = image_fixture::gradient(8, 8, 3);
    pixels[static_cast<size_t>(i)] = 255;
    image_fixture::make_png(at("flat/" + std::to_string(i) + ".png"), 8, 8, pixels);
  }
  succeed(training("run", {"--steps", "4", "--sample-every", "2", "--sample-steps", "2"}, "flat"));
  EXPECT_TRUE(fs::exists(at("run/samples/step-000000004.png")));
  const SafetensorsReader saved(checkpoint("run", 4));
  EXPECT_EQ(saved.find("y_embedder.embedding_table.weight"), nullptr);
  succeed({"sample", "--from", "run", "--count", "3", "--steps", "2", "--out", "grid.png"});
  const ImageInfo grid = probe_image(at("grid.png"));
  EXPECT_EQ(grid.channels, 3);
  expect_refused(run({"sample", "--from", "run", "--classes", "0", "--out", "no.png"}), 2,
                 {"--classes"});
}

TEST_F(CliTrain, FoldersOfClassesTrain) {
  for (const std::string name : {"cat", "dog"}) {
    fs::create_directories(at("pets/" + name));
    for (int i = 0; i < 4; ++i) {
      image_fixture::make_png(at("pets/" + name + "/" + std::to_string(i) + ".png"), 8, 8,
                              image_fixture::gradient(8, 8, 3));
    }
  }
  succeed(training("run", {"--steps", "3"}, "pets"));
  EXPECT_EQ(
      SafetensorsReader(checkpoint("run", 3)).find("y_embedder.embedding_table.weight")->shape,
      (std::vector<int64_t>{3, 16}));
}

TEST_F(CliTrain, FeaturesOfFastDitTrainAndDrawLatents) {
  write_features();
  succeed(
      training("run", {"--steps", "4", "--sample-every", "4", "--sample-steps", "2"}, "latents"));
  EXPECT_TRUE(contains(file("run/samples/step-000000004.npy"), "(16, 4, 8, 8)"));
}

TEST_F(CliTrain, ManyLatentsAreAllWritten) {
  write_features();
  succeed(training("run",
                   {"--steps", "1", "--save-every", "0", "--sample-every", "1", "--sample-steps",
                    "1", "--count", "40"},
                   "latents"));
  EXPECT_TRUE(contains(file("run/samples/step-000000001.npy"), "(80, 4, 8, 8)"));
}

TEST_F(CliTrain, EveryMemoryDeclarationHoldsWhileTraining) {
  const std::vector<Args> kModels = {{"--objective", "ddpm"},
                                     {"--objective", "flow", "--clip", "1"},
                                     {"--qk-norm", "layer", "--weight-decay", "0.1"},
                                     {"--qk-norm", "rms", "--objective", "flow", "--ema", "0"},
                                     {"--classes", "0", "--no-learn-sigma"}};
  for (size_t i = 0; i < kModels.size(); ++i) {
    const std::string plain = "plain" + std::to_string(i);
    const std::string proven = "proven" + std::to_string(i);
    const Args args = Args{"--steps", "2"} + kModels[i];
    succeed(training(plain, args));
    succeed(training(proven, args + Args{"--debug-memory"}));
    expect_same_files(plain + "/checkpoints", proven + "/checkpoints");
  }
}

TEST_F(CliTrain, ProvingMemoryDoesNotMistakeTheLoaderForAnOp) {
  // Loader threads write their part of the arena while the steps run.
  const Args args = {"--steps", "40", "--loader-threads", "2"};
  succeed(training("plain", args));
  succeed(training("proven", args + Args{"--debug-memory"}));
  expect_same_files("plain/checkpoints", "proven/checkpoints");
}

TEST_F(CliTrain, LosingTheReaderOfItsWordsDoesNotStopTheRun) {
  launch_.out = "/dev/full";
  succeed(training("run", {"--steps", "50", "--log-every", "1"}));
  EXPECT_EQ(log("run").size(), 50u);
  EXPECT_TRUE(fs::exists(checkpoint("run", 50)));
}

}  // namespace
}  // namespace ebb::cli_fixture
