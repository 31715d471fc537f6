// The table of solutions.
#include <set>

#include "cli_fixture.h"

namespace ebb::cli_fixture {
namespace {

class CliCompare : public CliTest {
 protected:
  static Args sizes() { return {"--width", "32", "--depth", "3", "--heads", "2", "--patch", "4"}; }
  // Enough activations that the techniques matter, small enough that a row takes a fraction of a
  // second.
  static Args compare(const Args& more) {
    return Args{"compare", "--image-size", "32", "--batch", "16", "--rounds", "1"} + sizes() + more;
  }
  static std::string class_of(const Json& table, const std::string& technique) {
    for (const Json& each : table["rows"]) {
      if (each["technique"] == technique) return each["class"];
    }
    return "no such row";
  }
  static void expect_classes(const Json& table) {
    for (const char* exact : {"everything kept", "recompute cheap tensors", "recompute all",
                              "release", "release, --clip 0", "recompute cheap tensors + release",
                              "micro-batch 4", "micro-batch 1", "micro-batch 4 + recompute all",
                              "micro-batch 1 + recompute all + layer-major + release"}) {
      EXPECT_EQ(class_of(table, exact), "exact") << exact;
    }
    for (const char* lossy :
         {"bf16", "galore", "8-bit moments", "bf16 average", "bf16 gradients",
          "bf16 + 8-bit moments + bf16 average", "half of heads and MLP", "half of the blocks"}) {
      EXPECT_EQ(class_of(table, lossy), "lossy") << lossy;
    }
  }
  // Smaller models, and said to be.
  static void expect_pruned_rows(const Json& table) {
    int found = 0;
    for (const Json& each : table["rows"]) {
      const std::string flags = each["flags"];
      if (!contains(flags, "--shapes") && !contains(flags, "--density")) continue;
      ++found;
      EXPECT_GT(each["saved_bytes"], 0) << each;
      EXPECT_TRUE(contains(each["note"], "ebb prune")) << each;
    }
    EXPECT_EQ(found, 3);
  }
  // The notes of these rows are what `plan` says of the same budget.
  static void expect_planner_rows(const Json& table) {
    int found = 0;
    for (const Json& each : table["rows"]) {
      const std::string flags = each["flags"];
      if (!flags.starts_with("--memory ")) continue;
      ++found;
      EXPECT_EQ(each["class"], contains(flags, "--allow") ? "lossy" : "exact") << each;
      EXPECT_LE(each["process_peak_bytes"].get<double>(), std::stod(flags.substr(9)) * (1 << 20));
      // The smallest computes again what is worth its place in the plan.
      EXPECT_TRUE(found > 1 || contains(each["note"], "recompute ")) << each;
    }
    EXPECT_EQ(found, 6);
  }
};

TEST_F(CliCompare, EveryRowIsMeasuredAndSaysHowExactItIs) {
  const Result result = succeed(compare({"--json", "--classes", "3", "--offload", "."}));
  const Json table = parsed(result);  // nothing but JSON on stdout
  EXPECT_TRUE(contains(result.err, "/29 recompute all ...\n")) << result.err;
  EXPECT_FALSE(contains(result.err, "\r")) << "not on a terminal";
  EXPECT_EQ(table["model"], "DiT 32x3/4");
  EXPECT_EQ(table["batch"], 16);
  ASSERT_EQ(table["rows"].size(), 29u);
  const Json& baseline = table["rows"][0];
  EXPECT_EQ(table["codes"].size(), 5u);
  EXPECT_EQ(baseline["technique"], "everything kept");
  EXPECT_EQ(baseline["saved_bytes"], 0);
  EXPECT_EQ(baseline["saved_percent"], 0);
  EXPECT_EQ(baseline["slowdown"], 1);
  std::set<std::string> names;
  for (const Json& each : table["rows"]) {
    EXPECT_EQ(each.size(), 9u) << each;
    names.insert(each["technique"]);
    EXPECT_EQ(each["saved_bytes"].get<int64_t>() + each["process_peak_bytes"].get<int64_t>(),
              baseline["process_peak_bytes"]);
    EXPECT_NEAR(each["slowdown"].get<double>() * baseline["step_seconds"].get<double>(),
                each["step_seconds"], 1e-9);
    EXPECT_GT(each["step_seconds"], 0);
    EXPECT_TRUE(each["note"].is_string());
  }
  // The planner's rows with and without the disk may come to the same budget.
  EXPECT_GE(names.size() + 1, table["rows"].size());
  EXPECT_EQ(table["rows"][2]["flags"],
            "--recompute all --micro-batch 16 --order batch --release off --label-rows off");
  expect_classes(table);
  expect_planner_rows(table);
  expect_pruned_rows(table);
}

TEST_F(CliCompare, PeopleGetATableAndAdvice) {
  const Result result = succeed(compare({}));
  const auto count = [&](const std::string& what) {
    int found = 0;
    for (size_t at = 0; (at = result.out.find(what, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count("\n| "), 1 + 28 + 1 + 5) << result.out;
  EXPECT_EQ(count("| `--"), 28 + 5) << result.out;
  EXPECT_EQ(count("Least memory: "), 1) << result.out;
  EXPECT_EQ(count("Least memory at less than 5 % slowdown: "), 1) << result.out;
}

TEST_F(CliCompare, AWrongModelIsRefusedBeforeAnythingIsMeasured) {
  const Result result = run({"compare", "--model", "DiT-Q/2"});
  EXPECT_EQ(result.code, 2) << result.story();
  EXPECT_EQ(result.err.rfind("error: ", 0), 0u) << result.story();
  EXPECT_EQ(run({"compare", "--memory", "1G"}).code, 2);
}

}  // namespace
}  // namespace ebb::cli_fixture
