// Flags, settings files and help: what a user mistypes is refused before anything is touched.
#include <sstream>

#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliUsage : public CliTest {
 protected:
  CliUsage() { write_idx(); }

  // The run fails with exit code 2 and has written nothing.
  void expect_usage_error(const Args& args, const std::vector<std::string>& nouns,
                          Remedy remedy = Remedy::wanted) const {
    const auto before = files_below(folder_);
    expect_refused(run(args), 2, nouns, remedy);
    EXPECT_EQ(files_below(folder_), before);
    EXPECT_FALSE(fs::exists(at("out")));
  }
  std::string config(const std::string& text) const {
    spill(at("my.toml"), text);
    return "my.toml";
  }
};

TEST_F(CliUsage, ZeroNegativeAbsurdAndTextualSizesAreRefusedNamingTheFlag) {
  for (const char* flag : {"--batch", "--width", "--depth", "--steps", "--image-size", "--patch"}) {
    for (const char* value : {"0", "-1", "99999999999999999999", "1e9", "abc", ""}) {
      expect_usage_error(training("out", {"--steps", "2", flag, value}), {flag}, Remedy::optional);
    }
  }
}

TEST_F(CliUsage, ShapesThatDoNotDivideAreRefused) {
  const auto shaped = [](const char* width, const char* heads, const char* patch) {
    return training("out", {"--steps", "2", "--width", width, "--heads", heads, "--patch", patch});
  };
  expect_usage_error(shaped("18", "4", "4"), {"--heads", "18", "4"});
  expect_usage_error(shaped("18", "3", "4"), {"--width", "18", "multiple of 4"});
  expect_usage_error(shaped("16", "2", "3"), {"--patch", "8", "3"});
}

TEST_F(CliUsage, ZeroEpochsAreRefusedLikeZeroSteps) {
  expect_usage_error(training("out", {"--epochs", "0"}), {"--epochs"}, Remedy::optional);
}

TEST_F(CliUsage, NumbersThatAreNoneAreRefused) {
  for (const char* flag : {"--lr", "--ema", "--clip", "--label-drop"}) {
    for (const char* value : {"-1", "nan", "inf", "abc", "1e999", ""}) {
      expect_usage_error(training("out", {"--steps", "2", flag, value}), {flag}, Remedy::optional);
    }
  }
  for (const char* value : {"0.9", "0.9,1", "a,b", "0.9,0.99,0.999"}) {
    expect_usage_error(training("out", {"--steps", "2", "--betas", value}), {"--betas"},
                       Remedy::optional);
  }
}

TEST_F(CliUsage, AMemoryThatIsNoSizeIsRefused) {
  for (const char* value : {"abc", "0", "-5M", "12Q", "", "nan", "1e30G"}) {
    expect_usage_error(training("out", {"--steps", "2", "--memory", value}),
                       {"--memory", "is not a size"});
  }
}

TEST_F(CliUsage, AnUnknownFlagIsRefusedWithTheOneMeant) {
  expect_usage_error(training("out", {"--steps", "2", "--dept", "4"}),
                     {"--dept", "did you mean --depth?"});
  expect_usage_error(training("out", {"--steps", "2", "--batchsize", "4"}),
                     {"--batchsize", "did you mean --batch?"});
  expect_usage_error(training("out", {"--steps", "2", "--batch-size=4"}),
                     {"--batch-size", "did you mean --batch?"});
  expect_usage_error({"sample", "--form", "x"}, {"--form", "did you mean --from?"});
}

TEST_F(CliUsage, AnUnknownVerbIsRefusedWithTheOneMeant) {
  expect_usage_error({"trian", "--data", "idx"}, {"trian", "did you mean train?"});
  expect_usage_error({"dance"}, {"dance"});
  EXPECT_EQ(run({}).code, 2);
}

TEST_F(CliUsage, AnUnknownModelOrChoiceIsRefusedWithTheOneMeant) {
  expect_usage_error({"plan", "--model", "DiT-XLL/2"}, {"--model", "did you mean DiT-XL/2?"});
  expect_usage_error({"plan", "--objective", "flaw"}, {"--objective", "did you mean flow?"},
                     Remedy::optional);
}

TEST_F(CliUsage, AFlagWithoutItsValueIsRefused) {
  expect_usage_error({"train", "--data"}, {"--data", "value"});
  expect_usage_error({"plan", "--model"}, {"--model", "value"});
}

TEST_F(CliUsage, TheNextFlagIsNotTakenForAMissingValue) {
  expect_usage_error({"train", "--data", "--steps", "5"}, {"--data", "value"});
  expect_usage_error(training("out", {"--steps", "2", "--out", "--resume"}), {"--out", "value"});
}

TEST_F(CliUsage, AMissingFlagIsNamed) {
  expect_usage_error({"train", "--out", "out", "--steps", "2"}, {"--data"});
  expect_usage_error({"train", "--data", "idx", "--steps", "2"}, {"--out"});
  expect_usage_error({"train", "--data", "idx", "--out", "out"}, {"--steps"});
  expect_usage_error({"sample", "--out", "out.png"}, {"--from"});
  expect_usage_error({"sample", "--from", "idx"}, {"--out"});
  expect_usage_error({"grad", "--batch-file", "b", "--out", "out"}, {"--weights"});
  expect_usage_error({"grad", "--weights", "w", "--out", "out"}, {"--batch-file"});
  expect_usage_error({"grad", "--weights", "w", "--batch-file", "b"}, {"--out"});
  expect_usage_error({"inspect"}, {"inspect"});
}

TEST_F(CliUsage, ASamplerThatDoesNotFitTheObjectiveIsRefused) {
  const auto drawing = [](const char* objective, const char* sampler) {
    return training("out", {"--steps", "2", "--sample-every", "1", "--objective", objective,
                            "--sampler", sampler});
  };
  expect_usage_error(drawing("flow", "ddim"), {"--sampler", "ddim", "flow"});
  expect_usage_error(drawing("ddpm", "heun"), {"--sampler", "heun", "ddpm"});
}

TEST_F(CliUsage, SizesThatContradictTheDataAreRefused) {
  expect_usage_error(training("out", {"--steps", "2", "--classes", "2"}), {"--classes", "2"});
  expect_usage_error(training("out", {"--steps", "2", "--channels", "2"}), {"--channels", "2"});
}

TEST_F(CliUsage, AnUnknownKeyOfASettingsFileIsRefusedWithItsLine) {
  expect_usage_error(training("out", {"--config", config("lr = 0.1\n\nbacth = 4\n")}),
                     {"my.toml:3", "bacth", "did you mean batch?"});
}

TEST_F(CliUsage, ASettingsFileThatIsNotTomlIsRefusedWithItsLine) {
  expect_usage_error(training("out", {"--config", config("lr = 0.1\nbatch = = 4\n")}),
                     {"my.toml:2"}, Remedy::optional);
  expect_usage_error(training("out", {"--config", config("lr = 0.1\nlr = 0.2\n")}), {"my.toml:2"},
                     Remedy::optional);
  // Letters beyond ASCII, which toml++ must not see outside strings.
  expect_usage_error(training("out", {"--config", config("lr = 0.1\n\u01f4 = 0.2\n")}),
                     {"my.toml:2", "ASCII"});
}

TEST_F(CliUsage, ASettingsFileThatIsNotThereIsNamed) {
  expect_usage_error(training("out", {"--config", "nosuch.toml"}), {"nosuch.toml"},
                     Remedy::optional);
  expect_usage_error(training("out", {"--steps", "2", "--config", "idx"}), {"idx"},
                     Remedy::optional);
}

TEST_F(CliUsage, AWrongTypeInASettingsFileIsRefusedWithItsLine) {
  for (const char* value : {"\"eight\"", "[4]", "1.5", "true", "{a = 1}", "2024-01-01"}) {
    const std::string text = std::string("lr = 0.1\nseed = 3\nwidth = ") + value + "\n";
    expect_usage_error(training("out", {"--steps", "2", "--config", config(text)}),
                       {"my.toml:3", "width"}, Remedy::optional);
  }
}

TEST_F(CliUsage, AnUnknownModelInASettingsFileIsRefusedWithItsLine) {
  expect_usage_error({"plan", "--config", config("lr = 0.1\nmodel = \"DiT-Q/2\"\n")},
                     {"my.toml:2", "DiT-Q/2"});
}

// cli.md: the line after `error:` says what to try.
TEST_F(CliUsage, EveryErrorIsFollowedByALineThatSaysWhatToTry) {
  const std::vector<Args> kMistakes = {
      {"--batch", "0"},        {"--batch", "abc"},          {"--lr", "-1"},
      {"--lr", "abc"},         {"--betas", "0.9"},          {"--objective", "flaw"},
      {"--config", "no.toml"}, {"--config", "syntax.toml"}, {"--config", "list.toml"},
  };
  spill(at("syntax.toml"), "batch = = 4\n");
  spill(at("list.toml"), "batch = [4]\n");
  for (const Args& mistake : kMistakes) {
    expect_usage_error(training("out", Args{"--steps", "2"} + mistake), {});
  }
}

TEST_F(CliUsage, TheExitCodeHoldsWhenTheErrorCannotBeWritten) {
  launch_.err = "/dev/full";
  EXPECT_EQ(run({"plan", "--batch", "0"}).code, 2);
  EXPECT_EQ(run({"train", "--data", "nosuch", "--out", "out", "--steps", "2"}).code, 4);
}

TEST_F(CliUsage, FlagsWinOverTheSettingsFile) {
  const std::string file =
      config("width = 16\ndepth = 1\nheads = 2\npatch = 4\nimage-size = 8\nbatch = 4\nseed = 1\n");
  const Args plan = {"plan", "--json", "--sample-every", "0", "--config", file};
  EXPECT_EQ(json(plan)["batch"], 4);
  EXPECT_EQ(json(plan + Args{"--batch", "2"})["batch"], 2);
  EXPECT_EQ(json(Args{"plan", "--batch", "2"} + Args(plan.begin() + 1, plan.end()))["batch"], 2);
}

TEST_F(CliUsage, ANamedModelOnTheCommandLineWinsOverTheFilesSizes) {
  const std::string file = config("width = 16\ndepth = 1\nheads = 2\npatch = 4\nbatch = 1\n");
  const Json plan =
      json({"plan", "--json", "--sample-every", "0", "--config", file, "--model", "DiT-S/8"});
  EXPECT_EQ(plan["params"], 33148160);
}

TEST_F(CliUsage, EpochsOnTheCommandLineWinOverTheFilesSteps) {
  const std::string file = config("steps = 3\n");
  succeed(training("out", {"--config", file, "--epochs", "1", "--save-every", "0"}));
  EXPECT_EQ(log("out").size(), 8u);  // 32 samples in batches of 4
}

TEST_F(CliUsage, TheHelpOfEveryVerbShowsAnExample) {
  const std::string usage = succeed({"--help"}).out;
  for (const char* verb : {"plan", "train", "sample", "grad", "inspect", "bench", "compare"}) {
    EXPECT_TRUE(contains(usage, std::string("ebb ") + verb)) << usage;
    const Result help = succeed({verb, "--help"});
    EXPECT_TRUE(contains(help.out, std::string("\n  ebb ") + verb + " ")) << help.story();
    EXPECT_EQ(help.err, "");
  }
  EXPECT_EQ(succeed({"--version"}).out.rfind("ebb ", 0), 0u);
}

TEST_F(CliUsage, HelpShowsTheDefaultsUnderHeadings) {
  const std::string help = succeed({"train", "-h"}).out;
  EXPECT_EQ(help, succeed({"train", "--help"}).out);
  EXPECT_EQ(help, succeed({"help", "train"}).out);
  for (const char* part : {"--batch N", "(default: 256)", "(default: 0.9999)",
                           "(default: 0.9,0.999)", "(default: DiT-S/2)", "training:", "the model:",
                           "memory and techniques:", "what a run writes:"}) {
    EXPECT_TRUE(contains(help, part)) << part << " is not in\n" << help;
  }
  EXPECT_LT(help.find("--data DIR"), help.find("--label-drop"));
  EXPECT_LT(help.find("--memory SIZE"), help.find("--label-drop"));
  EXPECT_TRUE(contains(succeed({"bench", "-h"}).out, "largest gradient norm (default: 1)"));
  EXPECT_TRUE(contains(succeed({"compare", "-h"}).out, "(default: 3)"));
}

TEST_F(CliUsage, HelpFitsATerminalOf80Columns) {
  for (const char* verb : {"plan", "train", "sample", "grad", "inspect", "bench", "compare"}) {
    std::istringstream help(succeed({verb, "--help"}).out);
    for (std::string line; std::getline(help, line);) EXPECT_LT(line.size(), 80u) << line;
  }
}

TEST_F(CliUsage, HintsNameTheVerbThatWasTyped) {
  for (const Args& args : {Args{"sample", "--out", "x.png"}, Args{"plan", "--batch", "0"},
                           Args{"bench", "--rounds", "0"}}) {
    const Result result = run(args);
    EXPECT_TRUE(contains(result.err_line(1), "ebb " + args[0] + " --help")) << result.story();
  }
}

TEST_F(CliUsage, StepsAndEpochsTogetherAreRefused) {
  expect_usage_error(training("out", {"--steps", "2", "--epochs", "1"}), {"--steps", "--epochs"});
  expect_usage_error(training("out", {"--config", config("steps = 2\nepochs = 1\n")}),
                     {"my.toml:1", "steps", "my.toml:2", "epochs"});
  expect_usage_error({"plan", "--steps", "2", "--epochs", "1"}, {"--steps", "--epochs"});
}

TEST_F(CliUsage, AModelThatNobodyChoseIsNamed) {
  const std::string unnamed =
      succeed({"plan", "--batch", "1", "--image-size", "8", "--sample-every", "0"}).out;
  EXPECT_EQ(unnamed.rfind("--model is not given: DiT-S/2", 0), 0u) << unnamed;
  const std::string named = succeed({"plan", "--batch", "1", "--image-size", "8", "--sample-every",
                                     "0", "--model", "DiT-S/4"})
                                .out;
  EXPECT_FALSE(contains(named, "is not given")) << named;
  json({"plan", "--batch", "1", "--image-size", "8", "--sample-every", "0", "--json"});
}

TEST_F(CliUsage, AFileInThePlaceOfTheRunsFolderIsNamedAsOne) {
  spill(at("afile"), "x");
  const Result result = run(training("afile", {"--steps", "2"}));
  expect_refused(result, 5, {"afile", "a file"});
  EXPECT_FALSE(contains(result.err_line(1), "exists")) << result.story();
}

TEST_F(CliUsage, WeightsThatAreNoCheckpointAreNotSentToAFlagOfAnotherMeaning) {
  const Result result =
      run({"sample", "--from", EBB_SOURCE_DIR "/tests/golden/ddpm_small.weights.safetensors",
           "--out", "g.png"});
  expect_refused(result, 5, {"not a checkpoint"});
  EXPECT_FALSE(contains(result.err, "--weights")) << result.story();
}

}  // namespace
}  // namespace ebb::cli_fixture
